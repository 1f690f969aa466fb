// Denoise a file in a worker, so that the page stays responsive; terminating the worker cancels it.

import { cleanFile } from "./clean.js";
import { Network } from "./network.js";
import { WavSource } from "./wav.js";

self.onmessage = async ({ data: { bytes, blob, saved } }) => {
  try {
    const source = Object.assign(await WavSource.open(blob), { saved });
    const result = await cleanFile(source, () => new Network(bytes), (message) => self.postMessage(message));
    self.postMessage({ kind: "done", ...result });
  } catch (error) {
    self.postMessage({ kind: "error", message: error.message });
  }
};
