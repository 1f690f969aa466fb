// node run_wasm.mjs MODULE: run samples (float32) from standard input through a module; write its settings, a line
// feed, and the output (float32, frame by frame) to standard output. With --time: the real-time factor instead.
import { readFileSync, writeSync } from "node:fs";

const { instance } = await WebAssembly.instantiate(readFileSync(process.argv[2]), {});
const m = instance.exports;
const about = {};
for (const key of ["rate", "hop", "delay", "frames", "outputs"]) about[key] = m[key]();
const text = new Uint8Array(m.memory.buffer, m.settings(), m.settings_bytes());
about.settings = JSON.parse(new TextDecoder().decode(text));

const bytes = readFileSync(0);
const samples = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
const input = new Float32Array(m.memory.buffer, m.input(), about.hop);
const output = new Float32Array(m.memory.buffer, m.output(), about.frames * about.outputs);
const results = [];
m.init();
const begin = performance.now();
for (let at = 0; at + about.hop <= samples.length; at += about.hop) {
  input.set(samples.subarray(at, at + about.hop));
  m.step();
  results.push(output.slice());
}
const seconds = (performance.now() - begin) / 1000;
if (process.argv[3] === "--time") {
  console.log(JSON.stringify({ ...about, settings: undefined, rtf: (seconds * about.rate) / samples.length }));
} else {
  const all = Buffer.concat([Buffer.from(JSON.stringify(about) + "\n"), ...results.map((r) => Buffer.from(r.buffer))]);
  for (let at = 0; at < all.length; at += writeSync(1, all, at));
}
