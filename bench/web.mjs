// Time a WebAssembly module and onnxruntime-web in Node, in alternating rounds, one thread each.
//
//     node bench/web.mjs NODE_MODULES MODEL.wasm MODEL.onnx [seconds] [rounds]
//
// Prints JSON: CPU seconds per second of audio, the least of all rounds for each engine. NODE_MODULES has onnxruntime-web.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, module, model, seconds = "2", rounds = "5"] = process.argv.slice(2);
const ort = await import(pathToFileURL(resolve(modules, "onnxruntime-web/dist/ort.node.min.mjs")));
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const e = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(module)), {}).exports;
e.init();
const input = new Float32Array(e.memory.buffer, e.input(), e.hop());

const session = await ort.InferenceSession.create(readFileSync(model), { executionProviders: ["wasm"] });
const feeds = {};
for (const { name, shape } of session.inputMetadata) {
  const sizes = shape.map((size) => (typeof size === "number" ? size : 1));
  feeds[name] = new ort.Tensor("float32", new Float32Array(sizes.reduce((a, b) => a * b, 1)), sizes);
}
const { audio } = feeds;

function sound(out) {
  for (let k = 0; k < out.length; k++) out[k] = 0.2 * Math.random() - 0.1;
}

const engines = {
  async module(steps) {
    for (let k = 0; k < steps; k++) {
      sound(input);
      e.step();
    }
    return steps * input.length;
  },
  async onnxruntime_web(steps) {
    for (let k = 0; k < steps; k++) {
      sound(audio.data);
      const results = await session.run(feeds);
      for (const name of session.outputNames) if (name.startsWith("next.")) feeds[`state.${name.slice(5)}`] = results[name];
    }
    return steps * audio.data.length;
  },
};
const hops = { module: input.length, onnxruntime_web: audio.data.length };
const best = {};
for (let round = 0; round < Number(rounds); round++) {
  for (const [name, run] of Object.entries(engines)) {
    const before = process.cpuUsage();
    const samples = await run(Math.ceil((Number(seconds) * e.rate()) / hops[name]));
    const { user, system } = process.cpuUsage(before);
    best[name] = Math.min(best[name] ?? Infinity, (user + system) / 1e6 / (samples / e.rate()));
  }
}
console.log(JSON.stringify({ ...best, version: ort.env.versions?.web ?? null }));
