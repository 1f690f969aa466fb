// The audio thread: runs networks block by block in real time, and plays results.

import { feed, Network } from "./network.js";
import { QUICK, Resampler } from "./resample.js";
import { BlockDenoiser } from "./stream.js";

const FADE = 0.02; // seconds of a fade when the mix changes and when playback starts or stops, to avoid clicks
const REPORT = 0.5; // seconds between reports of the load
const SENT = 256; // samples of each signal in a message to the page
const GAP = 0.02; // seconds by which the clock must gain on the audio for blocks to count as dropped

// Milliseconds; audio worklets of most browsers have only Date, whose rounding averages out over a report.
const now = globalThis.performance ? () => performance.now() : () => Date.now();

// The share of time that the callback takes, and the number of dropped blocks.
class Load {
  constructor(send) {
    this.send = send;
    this.busy = this.blocks = this.dropped = 0;
    this.least = Infinity; // least lead of the clock over the audio in this report, and in the previous one
    this.before = null;
    this.began = null;
  }

  run(work, block) {
    const start = now();
    this.began ??= start - (1000 * currentFrame) / sampleRate;
    this.least = Math.min(this.least, start - this.began - (1000 * currentFrame) / sampleRate);
    work();
    this.busy += now() - start;
    this.blocks += 1;
    if (this.blocks * block >= REPORT * sampleRate) this.report(block);
  }

  report(block) {
    const seconds = (this.blocks * block) / sampleRate;
    if (this.before !== null && this.least - this.before > 1000 * GAP) {
      this.dropped += Math.round(((this.least - this.before) / 1000) * (sampleRate / block));
    }
    this.send({ kind: "load", load: this.busy / 1000 / seconds, dropped: this.dropped });
    this.before = this.least;
    this.busy = this.blocks = 0;
    this.least = Infinity;
  }
}

// Denoises the input. Output 0 goes to the speakers: the input or the mixture, equally delayed. The page gets both.
class DenoiserProcessor extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.network = new Network(processorOptions.bytes);
    this.share = this.target = processorOptions.share;
    this.processed = this.processedTarget = processorOptions.bypass ? 0 : 1;
    this.load = new Load((message) => this.port.postMessage(message));
    this.stopped = false;
    this.port.onmessage = ({ data }) => {
      if (data.kind === "amount") this.target = data.share;
      if (data.kind === "listen") this.processedTarget = data.bypass ? 0 : 1;
      if (data.kind === "stop") {
        this.send();
        this.port.postMessage({ kind: "stopped" });
        this.stopped = true;
      }
    };
  }

  begin(block) {
    this.denoiser = new BlockDenoiser(this.network, sampleRate, block);
    this.wet = new Float32Array(block);
    this.dry = new Float32Array(block);
    this.silence = new Float32Array(block);
    this.fade = 1 / (FADE * sampleRate);
    const room = Math.ceil(SENT / block) * block;
    this.sent = { dry: new Float32Array(room), wet: new Float32Array(room), fill: 0 };
    const { latency: lag } = this.denoiser;
    this.port.postMessage({ kind: "ready", lag, latency: lag + block, rate: sampleRate });
  }

  process(inputs, outputs) {
    if (this.stopped) return false;
    const out = outputs[0][0];
    if (!this.denoiser) this.begin(out.length);
    this.load.run(() => this.work(mono(inputs[0], this.silence), out), out.length);
    return true;
  }

  work(x, out) {
    this.denoiser.process(x, this.wet, this.dry);
    const { sent, wet, dry, fade } = this;
    for (let k = 0; k < out.length; k++) {
      this.share = towards(this.share, this.target, fade);
      this.processed = towards(this.processed, this.processedTarget, fade);
      const mixed = dry[k] + this.share * (wet[k] - dry[k]);
      out[k] = dry[k] + this.processed * (mixed - dry[k]);
      sent.dry[sent.fill + k] = dry[k];
      sent.wet[sent.fill + k] = mixed;
    }
    sent.fill += out.length;
    if (sent.fill === sent.dry.length) this.send();
  }

  send() {
    if (!this.sent?.fill) return;
    const { dry, wet, fill } = this.sent;
    this.port.postMessage({ kind: "sound", dry: dry.slice(0, fill), wet: wet.slice(0, fill) });
    this.sent.fill = 0;
  }
}

// Runs classifiers and recognisers: their outputs go to the page, no audio is played.
class ListenerProcessor extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.networks = processorOptions.models.map(({ name, bytes }) => {
      const network = new Network(bytes);
      return { name, network, resampler: new Resampler(sampleRate, network.rate, QUICK), fill: 0 };
    });
    this.load = new Load((message) => this.port.postMessage(message));
    this.stopped = false;
    this.port.onmessage = ({ data }) => {
      if (data.kind === "stop") this.stopped = true;
      if (data.kind === "stop") this.port.postMessage({ kind: "stopped" });
    };
    this.level = { sum: 0, count: 0 };
    this.port.postMessage({ kind: "ready", latency: 0, rate: sampleRate });
  }

  process(inputs, outputs) {
    if (this.stopped) return false;
    this.silence ??= new Float32Array(outputs[0][0].length);
    const x = mono(inputs[0], this.silence);
    this.load.run(() => this.networks.forEach((entry) => this.feed(entry, x)), x.length);
    this.measure(x);
    return true;
  }

  feed(entry, x) {
    const { network, name } = entry;
    entry.fill = feed(network, entry.resampler.process(x), entry.fill, (output) => {
      this.port.postMessage({ kind: "logits", name, logits: output.slice() });
    });
  }

  measure(x) {
    for (let k = 0; k < x.length; k++) this.level.sum += x[k] * x[k];
    this.level.count += x.length;
    if (this.level.count >= SENT) {
      this.port.postMessage({ kind: "level", power: this.level.sum / this.level.count });
      this.level = { sum: 0, count: 0 };
    }
  }
}

// Plays two aligned signals that the page sends ahead in blocks, fades between them, and fades in and out.
class PlayerProcessor extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.blocks = [];
    this.at = 0;
    this.position = processorOptions.start;
    this.share = this.target = processorOptions.share;
    this.gain = 0;
    this.gainTarget = 1;
    this.playing = true;
    this.ended = false;
    this.told = 0;
    this.load = new Load((message) => this.port.postMessage(message));
    this.port.onmessage = ({ data }) => {
      if (data.kind === "sound") this.blocks.push(data);
      if (data.kind === "amount") this.target = data.share;
      if (data.kind === "end") this.ended = true;
      if (data.kind === "stop") this.gainTarget = 0;
    };
  }

  process(inputs, outputs) {
    if (!this.playing) return false;
    this.load.run(() => this.work(outputs[0]), outputs[0][0].length);
    if (this.gain === 0 && this.gainTarget === 0) this.playing = false;
    this.told += outputs[0][0].length;
    if (this.told >= SENT) {
      this.told = 0;
      this.port.postMessage({ kind: "position", position: this.position, queued: this.blocks.length });
    }
    if (this.ended && !this.blocks.length) {
      this.playing = false;
      this.port.postMessage({ kind: "finished" });
    }
    return true;
  }

  work(out) {
    const fade = 1 / (FADE * sampleRate);
    for (let k = 0; k < out[0].length; k++) {
      if (!this.blocks.length) return;
      this.share = towards(this.share, this.target, fade);
      this.gain = towards(this.gain, this.gainTarget, fade);
      const { dry, wet } = this.blocks[0];
      for (let c = 0; c < out.length; c++) {
        const a = dry[Math.min(c, dry.length - 1)][this.at];
        const b = wet[Math.min(c, wet.length - 1)][this.at];
        out[c][k] = this.gain * (a + this.share * (b - a));
      }
      this.position += 1;
      this.at += 1;
      if (this.at === dry[0].length) {
        this.blocks.shift();
        this.at = 0;
      }
    }
  }
}

function mono(channels, silence) {
  if (!channels.length) return silence; // the source is not connected
  if (channels.length === 1) return channels[0];
  return channels[0].map((x, k) => channels.reduce((sum, channel) => sum + channel[k], 0) / channels.length);
}

function towards(value, target, step) {
  return value < target ? Math.min(target, value + step) : Math.max(target, value - step);
}

registerProcessor("centaurus-denoiser", DenoiserProcessor);
registerProcessor("centaurus-listener", ListenerProcessor);
registerProcessor("centaurus-player", PlayerProcessor);
