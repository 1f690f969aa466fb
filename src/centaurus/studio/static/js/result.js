// A denoised file: input and output, aligned and at the file's rate, for playing from any position and for saving.

import { FINE, gcd, Resampler } from "./resample.js";
import { join } from "./stream.js";
import { encode, header } from "./wav.js";

const PIECE = 1; // seconds of a piece

export class Result {
  // source: the reader of the input; data: what the worker returned.
  constructor(source, data) {
    this.source = source;
    Object.assign(this, data);
  }

  // Pieces { dry, wet } from a frame on: arrays with a Float32Array for each channel, of equal lengths.
  async *pieces(start = 0) {
    const { fileRate, rate, channels, frames, source } = this;
    const step = Math.round(PIECE * fileRate);
    // Begin at a time that is a whole sample at both rates, early enough for the resampler's history.
    const unit = fileRate / gcd(fileRate, rate);
    const early = Math.max(0, start - Math.ceil((2 * FINE * fileRate) / Math.min(rate, fileRate)));
    const origin = Math.floor(early / unit) * unit;
    const back = Array.from({ length: channels }, () => new Resampler(rate, fileRate, FINE));
    let position = origin; // of the next wet sample, at the file's rate
    let from = Math.round((origin / fileRate) * rate); // at the network's rate
    let ready = back.map(() => new Float32Array(0));
    for (let at = start; at < frames; at += step) {
      const count = Math.min(step, frames - at);
      while (position + ready[0].length < at + count) {
        const wet = await this.wet(from, Math.round(PIECE * rate));
        const last = wet[0].length === 0;
        from += wet[0].length;
        const made = back.map((line, c) => (last ? padded(line.flush(), at + count - position - ready[c].length) : line.process(wet[c])));
        ready = ready.map((x, c) => join([x, made[c]]));
      }
      const skip = at - position;
      const dry = await source.read(at, count);
      yield { dry, wet: ready.map((x) => x.slice(skip, skip + count)) };
      ready = ready.map((x) => x.slice(skip + count));
      position = at + count;
    }
  }

  // The file with this share of the denoised signal, as a WAV file in a Blob.
  async save(share, progress = () => {}) {
    const width = this.sample === "s16" ? 2 : 4;
    const parts = [header(this.sample, this.fileRate, this.channels, this.frames * this.channels * width)];
    let pending = [];
    let done = 0;
    for await (const { dry, wet } of this.pieces()) {
      const mixed = dry.map((x, c) => (share === 1 ? wet[c] : x.map((v, k) => v + share * (wet[c][k] - v))));
      pending.push(encode(this.sample, mixed));
      done += mixed[0].length;
      if (pending.length === 60) {
        parts.push(new Blob(pending)); // browsers can move it to disk
        pending = [];
      }
      progress(done / this.frames);
    }
    return new Blob([...parts, ...pending], { type: "audio/wav" });
  }

  // Denoised samples at the network's rate.
  async wet(start, count) {
    const { channels } = this;
    const entry = this.blobs.find((b) => start >= b.start && start < b.start + b.frames);
    const frames = entry ? Math.min(count, entry.start + entry.frames - start) : 0;
    const at = entry ? (start - entry.start) * channels * 4 : 0;
    const data = entry ? new Float32Array(await entry.blob.slice(at, at + frames * channels * 4).arrayBuffer()) : [];
    return Array.from({ length: channels }, (_, c) => {
      const out = new Float32Array(frames);
      for (let k = 0; k < frames; k++) out[k] = data[k * channels + c];
      return out;
    });
  }
}

// Pad to at least `least` samples: rounding of two rates may drop the last one.
function padded(x, least) {
  return x.length >= least ? x : join([x, new Float32Array(least - x.length)]);
}
