// The worker's side of denoising a file: the page stays responsive, and ends the work by ending the worker.

import { Arrays, cleanFile } from "./clean.js";
import { Network } from "./network.js";
import { WavSource } from "./wav.js";

self.onmessage = async ({ data: { bytes, source } }) => {
  try {
    const from = source.blob ? await WavSource.open(source.blob) : new Arrays(source);
    const result = await cleanFile(from, () => new Network(bytes), (message) => self.postMessage(message));
    self.postMessage({ kind: "done", ...result });
  } catch (error) {
    self.postMessage({ kind: "error", message: error.message });
  }
};
