// Live audio: the microphone, an audio context at the network's rate if the browser supports it, and the audio thread.

import { loadModule } from "./page.js";

const WORKLET = new URL("worklet.js", import.meta.url).href;
const RAW = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };

// A message about what is missing for live audio; null if nothing is.
export function missing() {
  if (!globalThis.WebAssembly) return "This browser does not support WebAssembly: use a current Firefox, Chrome, Edge or Safari.";
  if (!globalThis.isSecureContext) {
    return "The microphone works only on https:// pages or on this computer (127.0.0.1): open the studio there.";
  }
  if (!globalThis.AudioContext || !globalThis.AudioWorkletNode) {
    return "This browser does not support audio worklets: use a current Firefox, Chrome, Edge or Safari.";
  }
  if (!navigator.mediaDevices?.getUserMedia) return "This browser does not give pages access to a microphone.";
  return null;
}

export async function openMicrophone() {
  const fault = missing();
  if (fault) throw new Error(fault);
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: { ...RAW, channelCount: { ideal: 1 } } });
  } catch (error) {
    throw new Error(REASONS[error.name] ?? `The microphone cannot be opened: ${error.message}`);
  }
}

const REASONS = {
  NotAllowedError: "The microphone was denied. Allow it for this page in the browser's address bar, then try again.",
  NotFoundError: "No microphone was found: connect one, then try again.",
  NotReadableError: "The microphone is in use by another program, or the system does not give it to the browser.",
  OverconstrainedError: "No suitable microphone was found: connect another one, then try again.",
  SecurityError: "The browser's settings forbid the microphone on this page.",
};

// An audio context at `rate` (Hz) with the stream as its source; at the browser's own rate if it cannot resample a
// microphone.
export async function openContext(rate, stream) {
  let context = new AudioContext({ sampleRate: rate, latencyHint: "interactive" });
  let source = null;
  try {
    source = stream ? context.createMediaStreamSource(stream) : null;
  } catch {
    await context.close();
    context = new AudioContext({ latencyHint: "interactive" });
    source = context.createMediaStreamSource(stream);
  }
  await context.audioWorklet.addModule(WORKLET);
  await context.resume();
  return { context, source };
}

// Release the microphone and the context of a recording, as far as they were opened.
export async function closeAudio({ stream, context }) {
  for (const track of stream?.getTracks() ?? []) track.stop();
  if (context && context.state !== "closed") await context.close();
}

// A node of the audio thread. Its messages go to handle[kind]; failed is called if it stops.
export function addNode(context, name, options, handle, failed, channels = 1) {
  const node = new AudioWorkletNode(context, name, {
    numberOfInputs: 1,
    numberOfOutputs: 1,
    outputChannelCount: [channels],
    processorOptions: options,
  });
  node.port.onmessage = ({ data }) => handle[data.kind]?.(data);
  node.onprocessorerror = () => failed(new Error("The audio thread stopped: the model could not be run. Reload the page."));
  return node;
}

export async function loadModels(names) {
  return Promise.all(names.map(async (name) => ({ name, bytes: await loadModule(name) })));
}
