// Streams through a network: samples at any rate in, aligned results at the network's rate out.

import { feed } from "./network.js";
import { QUICK, Resampler } from "./resample.js";

// Runs one channel of audio, in pieces of any length, through a denoiser. The result has no delay: its sample k
// belongs to input sample k (at the network's rate), and flush() returns the rest.
export class CleanStream {
  constructor(network) {
    this.network = network;
    network.reset();
    this.fill = 0;
    this.taken = 0;
    this.returned = 0;
    this.late = network.delay; // samples at the beginning that precede the input
  }

  process(x) {
    const out = [];
    this.taken += x.length;
    this.fill = feed(this.network, x, this.fill, (output) => out.push(output.slice()));
    return this.aligned(join(out));
  }

  flush() {
    const due = this.taken - this.returned;
    const steps = Math.ceil((due + this.late) / this.network.hop) + 1;
    const taken = this.taken;
    const tail = this.process(new Float32Array(steps * this.network.hop));
    this.taken = taken;
    return tail.subarray(0, due);
  }

  aligned(y) {
    const skip = Math.min(this.late, y.length);
    this.late -= skip;
    this.returned += y.length - skip;
    return skip ? y.subarray(skip) : y;
  }
}

// A queue of samples of fixed capacity, for code that must not allocate.
export class Queue {
  constructor(capacity) {
    this.data = new Float32Array(capacity);
    this.start = 0;
    this.length = 0;
  }

  push(x) {
    if (this.length + x.length > this.data.length) throw new RangeError("queue is full");
    for (let k = 0; k < x.length; k++) this.data[(this.start + this.length + k) % this.data.length] = x[k];
    this.length += x.length;
  }

  zeros(count) {
    for (let k = 0; k < count; k++) this.data[(this.start + this.length + k) % this.data.length] = 0;
    this.length += count;
  }

  pull(out) {
    if (out.length > this.length) throw new RangeError("queue is empty");
    for (let k = 0; k < out.length; k++) out[k] = this.data[(this.start + k) % this.data.length];
    this.start = (this.start + out.length) % this.data.length;
    this.length -= out.length;
  }
}

// Denoises blocks of a fixed size, as an audio callback needs: wet and dry are both delayed by `latency` samples.
export class BlockDenoiser {
  constructor(network, rate, block) {
    this.clean = new CleanStream(network);
    this.into = new Resampler(rate, network.rate, QUICK);
    this.back = new Resampler(network.rate, rate, QUICK);
    this.latency = shortage(network, rate, block);
    const capacity = this.latency + 8 * (block + Math.ceil((network.hop * rate) / network.rate)) + 1024;
    this.wet = new Queue(capacity);
    this.dry = new Queue(capacity);
    this.wet.zeros(this.latency);
    this.dry.zeros(this.latency);
  }

  process(x, wet, dry) {
    this.dry.push(x);
    this.wet.push(this.back.process(this.clean.process(this.into.process(x))));
    this.wet.pull(wet);
    this.dry.pull(dry);
  }
}

// The largest lag of the output behind the input in samples, due to hop, delay and resamplers, found by simulation.
function shortage(network, rate, block) {
  const into = new Resampler(rate, network.rate, QUICK);
  const back = new Resampler(network.rate, rate, QUICK);
  const silence = new Float32Array(block);
  let taken = 0;
  let ready = 0;
  let waiting = -network.delay;
  let worst = 0;
  for (let returned = 0; taken < 4 * rate; ) {
    taken += block;
    ready += into.process(silence).length;
    const steps = Math.floor(ready / network.hop) * network.hop;
    ready -= steps;
    waiting += steps;
    if (waiting > 0) {
      returned += back.process(new Float32Array(waiting)).length;
      waiting = 0;
    }
    worst = Math.max(worst, taken - returned);
  }
  return worst;
}

export function join(pieces) {
  if (pieces.length === 1) return pieces[0];
  const out = new Float32Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    out.set(piece, at);
    at += piece.length;
  }
  return out;
}

// The share of the denoised signal in the output, the rest being input: noise falls by at most the limit (dB; 0: none).
export function cleanedShare(mix, limit) {
  return limit > 0 ? mix * (1 - 10 ** (-limit / 20)) : mix;
}
