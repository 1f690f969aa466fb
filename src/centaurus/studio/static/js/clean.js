// Denoise a file piece by piece: only the result, which is kept in Blobs, grows with the file's length.

import { Spectrum } from "./fft.js";
import { FINE, Resampler } from "./resample.js";
import { CleanStream, join } from "./stream.js";

const PIECE = 2; // seconds read at a time
const STORED = 1 << 22; // samples in one Blob of the result: browsers can move large Blobs to disk
const BINS = 512; // of a spectrum; the window has twice as many samples
const COLUMNS = 900; // most columns of the spectrogram of a file
const LEAST_STEP = 256; // least samples between columns

// Denoises a source. Resolves to Blobs of interleaved float32 samples at the network's rate, and the file's format; report
// is called with messages of progress and columns of the spectrograms.
export async function cleanFile(source, makeNetwork, report) {
  const lines = Array.from({ length: source.channels }, () => {
    const network = makeNetwork();
    return { clean: new CleanStream(network), into: new Resampler(source.rate, network.rate, FINE) };
  });
  const { rate, delay, hop } = lines[0].clean.network;
  const samples = (source.frames / source.rate) * rate;
  const picture = new Picture(samples);
  report({ kind: "begin", columns: Math.floor((samples - 2 * BINS) / picture.step) + 1 });
  const store = new Store(source.channels);
  const piece = PIECE * source.rate;
  const began = Date.now();
  for (let at = 0; at < source.frames; at += piece) {
    const sound = await source.read(at, piece);
    const last = at + piece >= source.frames;
    const input = lines.map((line, c) => {
      const x = line.into.process(sound[c]);
      return last ? join([x, line.into.flush()]) : x;
    });
    const output = lines.map((line, c) => {
      const y = line.clean.process(input[c]);
      return last ? join([y, line.clean.flush()]) : y;
    });
    store.add(output);
    picture.add(input[0], output[0]);
    const columns = picture.take();
    report({ kind: "progress", frames: Math.min(at + piece, source.frames), took: (Date.now() - began) / 1000, columns });
  }
  store.end();
  const { rate: fileRate, channels, frames, saved } = source;
  return { blobs: store.blobs, rate, delay, hop, fileRate, channels, frames, sample: saved };
}

class Store {
  constructor(channels) {
    this.channels = channels;
    this.blobs = []; // { blob, start, frames } at the network's rate
    this.parts = [];
    this.frames = this.start = 0;
  }

  add(output) {
    const count = output[0].length;
    const out = new Float32Array(count * this.channels);
    output.forEach((y, c) => {
      for (let k = 0; k < count; k++) out[k * this.channels + c] = y[k];
    });
    this.parts.push(out);
    this.frames += count;
    if (this.frames * this.channels >= STORED) this.end();
  }

  end() {
    if (!this.frames) return;
    this.blobs.push({ blob: new Blob(this.parts), start: this.start, frames: this.frames });
    this.start += this.frames;
    this.parts = [];
    this.frames = 0;
  }
}

// Columns of the spectrograms of a file, before and after: at most COLUMNS for a file of any length.
class Picture {
  constructor(samples) {
    this.step = Math.max(LEAST_STEP, Math.ceil(samples / COLUMNS));
    this.spectrum = new Spectrum(2 * BINS);
    this.before = new Float32Array(0);
    this.after = new Float32Array(0);
    this.skip = 0;
    this.columns = [];
  }

  // The output may come a few samples later than the input.
  add(input, output) {
    this.before = join([this.before, input]);
    this.after = join([this.after, output]);
    const least = Math.min(this.before.length, this.after.length);
    let at = this.skip;
    for (; at + 2 * BINS <= least; at += this.step) {
      this.columns.push([this.column(this.before, at), this.column(this.after, at)]);
    }
    const gone = Math.min(at, least);
    this.skip = at - gone;
    this.before = this.before.slice(gone);
    this.after = this.after.slice(gone);
  }

  column(x, at) {
    return this.spectrum.levels(x.subarray(at, at + 2 * BINS), new Float32Array(BINS));
  }

  take() {
    const columns = this.columns;
    this.columns = [];
    return columns;
  }
}
