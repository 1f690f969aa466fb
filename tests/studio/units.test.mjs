// The studio's own arithmetic, without a browser: run by `node --test`.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const scripts = new URL("../../src/centaurus/studio/static/js/", import.meta.url);
const load = (name) => import(new URL(name, scripts));
const { FINE, QUICK, Resampler } = await load("resample.js");
const { BlockDenoiser, CleanStream, cleanedShare, join } = await load("stream.js");
const { WavSource, encode, header } = await load("wav.js");
const { cleanFile } = await load("clean.js");
const { Result } = await load("result.js");
const { Spectrum } = await load("fft.js");

// A network that returns its input, delayed, with the interface of a module.
class Echo {
  constructor(hop = 128, delay = 0, rate = 16_000) {
    Object.assign(this, { hop, delay, rate, frames: hop, outputs: 1 });
    this.input = new Float32Array(hop);
    this.output = new Float32Array(hop);
    this.reset();
  }

  reset() {
    this.line = new Float32Array(this.delay);
  }

  step() {
    const all = join([this.line, this.input.slice()]);
    this.output.set(all.subarray(0, this.hop));
    this.line = all.slice(this.hop);
  }
}

const noise = (count, seed = 1) => {
  let state = seed;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  });
};
const sine = (count, hertz, rate) => Float32Array.from({ length: count }, (_, k) => 0.5 * Math.sin((2 * Math.PI * hertz * k) / rate));
const largest = (a, b, from = 0, to = a.length) => {
  let worst = 0;
  for (let k = from; k < to; k++) worst = Math.max(worst, Math.abs(a[k] - b[k]));
  return worst;
};
const inPieces = (stream, x, sizes) => {
  const out = [];
  for (let at = 0, k = 0; at < x.length; k++) {
    const piece = x.subarray(at, at + sizes[k % sizes.length]);
    out.push(stream.process(piece));
    at += piece.length;
  }
  return join([...out, stream.flush()]);
};

for (const [from, to] of [[48_000, 16_000], [44_100, 16_000], [16_000, 48_000], [16_000, 44_100], [8_000, 16_000], [11_025, 16_000]]) {
  test(`resampling ${from} to ${to} has the exact length and does not depend on pieces`, () => {
    for (const count of [1, 2, 999, 12_345]) {
      const x = noise(count);
      const whole = inPieces(new Resampler(from, to), x, [count]);
      const pieces = inPieces(new Resampler(from, to), x, [1, 128, 7, 3000]);
      assert.equal(whole.length, Math.ceil((count * to) / from));
      assert.deepEqual(pieces, whole);
    }
  });

  test(`resampling ${from} to ${to} keeps a tone and its time to 80 dB`, () => {
    for (const zeros of [FINE, QUICK]) {
      const y = inPieces(new Resampler(from, to, zeros), sine(from, 1000, from), [4096]);
      assert.ok(largest(y, sine(to, 1000, to), 2000, to - 2000) < 0.5e-4);
    }
  });
}

test("resampling down removes what would alias", () => {
  const y = inPieces(new Resampler(48_000, 16_000), sine(48_000, 9_000, 48_000), [4800]);
  assert.ok(largest(y, new Float32Array(y.length), 1000, y.length - 1000) < 1e-4);
});

test("a denoised stream is aligned and as long as its input, whatever the delay and the pieces", () => {
  for (const [hop, delay] of [[128, 0], [128, 128], [256, 300]]) {
    for (const count of [1, 127, 128, 5000]) {
      const x = noise(count);
      assert.deepEqual(inPieces(new CleanStream(new Echo(hop, delay)), x, [33, 400]), x);
    }
  }
});

test("blocks come out late by the stated latency, wet and dry alike, without a gap", () => {
  for (const rate of [16_000, 44_100, 48_000]) {
    const denoiser = new BlockDenoiser(new Echo(128, 128), rate, 128);
    const x = sine(128 * 400, 440, rate);
    const wet = new Float32Array(x.length);
    const dry = new Float32Array(x.length);
    for (let at = 0; at < x.length; at += 128) {
      denoiser.process(x.subarray(at, at + 128), wet.subarray(at, at + 128), dry.subarray(at, at + 128));
    }
    assert.deepEqual(dry.subarray(denoiser.latency), x.subarray(0, x.length - denoiser.latency));
    assert.ok(largest(wet.subarray(denoiser.latency), x, 1000, x.length - denoiser.latency - 1000) < 1e-4);
    assert.ok(denoiser.latency <= 0.026 * rate, `${denoiser.latency} samples at ${rate}`);
  }
});

test("the share of the cleaned signal is that of the runtime", () => {
  assert.equal(cleanedShare(1, 0), 1);
  assert.equal(cleanedShare(0.5, 0), 0.5);
  assert.ok(Math.abs(cleanedShare(1, 20) - 0.9) < 1e-12);
});

test("WAV files survive a round trip, also the long kind", async () => {
  const channels = [noise(1000, 3), noise(1000, 4)];
  for (const [sample, error] of [["f32", 0], ["s16", 1.6e-5]]) {
    const data = encode(sample, channels);
    const source = await WavSource.open(new Blob([header(sample, 48_000, 2, data.byteLength), data]));
    assert.deepEqual([source.rate, source.channels, source.frames, source.sample], [48_000, 2, 1000, sample]);
    const [left, right] = await source.read(10, 5000);
    assert.equal(left.length, 990);
    assert.ok(largest(left, channels[0].subarray(10)) <= error);
    assert.ok(largest(right, channels[1].subarray(10)) <= error);
  }
  const long = new Uint8Array(header("f32", 48_000, 2, 2 ** 33));
  const source = await WavSource.open(new Blob([long, new Uint8Array(800)]));
  assert.equal(source.frames, 100); // what is there, not what is declared
});

test("damaged WAV files are refused with a message, other files are not WAV files", async () => {
  assert.equal(await WavSource.open(new Blob(["<script>alert(1)</script>"])), null);
  assert.equal(await WavSource.open(new Blob([])), null);
  await assert.rejects(WavSource.open(new Blob(["RIFF....WAVEjunk\x02\0\0\0xx"])), /damaged or empty/);
  const bad = new Uint8Array(header("s16", 48_000, 1, 100));
  bad[34] = 12;
  await assert.rejects(WavSource.open(new Blob([bad])), /12-bit/);
});

test("a file is cleaned, played from anywhere and saved with its own length and rate", async () => {
  for (const rate of [16_000, 44_100, 48_000]) {
    const channels = [sine(2 * rate + 77, 500, rate), sine(2 * rate + 77, 700, rate)];
    const samples = encode("f32", channels);
    const source = await WavSource.open(new Blob([header("f32", rate, 2, samples.byteLength), samples]));
    const seen = [];
    const data = await cleanFile(source, () => new Echo(128, 128), (message) => seen.push(message));
    assert.equal(seen.at(-1).frames, source.frames);
    assert.ok(seen.flatMap(({ columns }) => columns).length > 100);
    const result = new Result(source, data);
    const saved = await WavSource.open(await result.save(1));
    assert.deepEqual([saved.rate, saved.channels, saved.frames], [rate, 2, source.frames]);
    const [left, right] = await saved.read(0, saved.frames);
    const edge = rate === 16_000 ? 0 : 3000;
    assert.ok(largest(left, channels[0], edge, left.length - edge) < 1e-4);
    assert.ok(largest(right, channels[1], edge, left.length - edge) < 1e-4);
    for await (const { dry, wet } of result.pieces(rate + 1)) {
      assert.ok(largest(wet[0], dry[0], 0, Math.min(dry[0].length, rate - edge)) < 1e-4);
      break;
    }
  }
});

test("a file of more than an hour needs no more memory than a short one, but for the result", async () => {
  const rate = 16_000;
  const minute = encode("s16", [noise(60 * rate)]);
  const file = new Blob([header("s16", rate, 1, 61 * minute.byteLength), ...Array(61).fill(minute)]);
  const source = await WavSource.open(file);
  assert.equal(source.frames, 61 * 60 * rate);
  let columns = 0;
  const data = await cleanFile(source, () => new Echo(16_000), (message) => (columns += message.columns.length ?? 0));
  assert.ok(columns > 800 && columns <= 901, `${columns} columns`);
  const result = new Result(source, data);
  const last = await result.wet(source.frames - 1000, 1000);
  assert.deepEqual(last, await source.read(source.frames - 1000, 1000));
  assert.ok(Math.max(...data.blobs.map(({ blob }) => blob.size)) < 2 ** 25);
});

// The processors of worklet.js, by name, in an audio thread of 16 kHz without a browser.
const processors = new Map();
Object.assign(globalThis, {
  sampleRate: 16_000,
  currentFrame: 0,
  registerProcessor: (name, type) => processors.set(name, type),
  AudioWorkletProcessor: class {
    constructor() {
      const messages = [];
      this.port = { messages, postMessage: (message) => messages.push(message) };
    }
  },
});
await load("worklet.js");
const BLOCK = 128;

function runBlocks(processor, count, input, before) {
  const out = new Float32Array(count * BLOCK);
  for (let k = 0; k < count; k++) {
    before(k, (data) => processor.port.onmessage({ data }));
    const block = new Float32Array(BLOCK);
    processor.process([input ? [input.subarray(k * BLOCK, (k + 1) * BLOCK)] : []], [[block]]);
    out.set(block, k * BLOCK);
    globalThis.currentFrame += BLOCK;
  }
  return out;
}

const largestJump = (x) => {
  let worst = 0;
  for (let k = 1; k < x.length; k++) worst = Math.max(worst, Math.abs(x[k] - x[k - 1]));
  return worst;
};

test("playing a file never clicks: not at the A/B switch, nor at the beginning, nor when paused", () => {
  const count = 16_000;
  const [dry, wet] = [sine(count, 700, 16_000), sine(count, 310, 16_000).map((x, k) => x * Math.cos(k / 40))];
  const Player = processors.get("centaurus-player");
  const player = new Player({ processorOptions: { start: 0, share: 1 } });
  player.port.onmessage({ data: { kind: "sound", dry: [dry.subarray(100)], wet: [wet.subarray(100)] } });
  const out = runBlocks(player, 100, null, (k, tell) => {
    if (k % 7 === 3) tell({ kind: "amount", share: k % 2 });
    if (k === 90) tell({ kind: "stop" });
  });
  assert.ok(Math.max(...out) > 0.45);
  assert.ok(out.subarray(95 * BLOCK).every((x) => x === 0));
  assert.ok(largestJump(out) <= 1.02 * Math.max(largestJump(dry), largestJump(wet))); // 2 % for the slope of the fade
});

test("the live A/B switch never clicks", () => {
  const bytes = readFileSync(new URL("../../src/centaurus/pretrained/denoise-16k.wasm", import.meta.url));
  const Denoiser = processors.get("centaurus-denoiser");
  const live = new Denoiser({ processorOptions: { bytes, share: 1, bypass: false } });
  const count = 250;
  const rough = noise(count * BLOCK);
  const x = sine(count * BLOCK, 400, 16_000).map((tone, k) => tone * (0.5 + 0.5 * Math.sin(k / 1500)) + 0.1 * rough[k]);
  const out = runBlocks(live, count, x, (k, tell) => {
    if (k % 11 === 5) tell({ kind: "listen", bypass: k % 2 === 1 });
  });
  const sound = live.port.messages.filter(({ kind }) => kind === "sound");
  const [dry, wet] = ["dry", "wet"].map((name) => join(sound.map((message) => message[name])));
  assert.ok(largest(dry, wet) > 0.05, "the network changed nothing");
  assert.ok(largestJump(out) <= Math.max(largestJump(dry), largestJump(wet)));
});

test("a full-scale tone is about 0 dB in its bin", () => {
  const spectrum = new Spectrum(1024);
  const levels = spectrum.levels(sine(1024, 1000, 16_000).map((x) => 2 * x), new Float32Array(512));
  assert.equal(levels.indexOf(Math.max(...levels)), 64);
  assert.ok(Math.abs(levels[64]) < 0.1);
  assert.ok(levels[200] < -90);
});
