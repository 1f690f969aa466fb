// Audio files: WAV files are read piece by piece, other formats are decoded by the browser.

import { encode, header, WavSource } from "./wav.js";

const DECODED_RATE = 48_000; // Hz: browsers do not report a file's rate, and few files have a higher one
const FLAC_RATE = 18; // byte of a FLAC file where 20 bits of its rate begin
const LONG = 20 * 60; // seconds: longer files are decoded at the network's rate, for a third of the memory
const PART = 1 << 20; // decoded frames that are added to a Blob at a time
const DEMO = "demo.flac";

// A reader of an audio file, whose blob a worker can open too. networkRate is in Hz.
export async function openSound(file, networkRate) {
  const wav = await WavSource.open(file);
  if (wav) {
    if (!wav.frames) throw new Error(`${file.name} contains no audio.`);
    return wav;
  }
  const rate = (await lengthOf(file)) > LONG ? networkRate : ((await flacRate(file)) ?? DECODED_RATE);
  let buffer;
  try {
    const data = await file.arrayBuffer();
    buffer = await new OfflineAudioContext(1, 1, rate).decodeAudioData(data);
  } catch {
    throw new Error(
      `${file.name} is not an audio file that this browser can decode, or it is too long for its memory: ` +
        "WAV files of any length can be read.",
    );
  }
  return Object.assign(await WavSource.open(asWav(buffer)), { saved: "s16" });
}

// Decoded audio as a WAV file in a Blob: the page and its worker share it, and the browser may move it to disk.
function asWav(buffer) {
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, c) => buffer.getChannelData(c));
  const parts = [header("f32", buffer.sampleRate, channels.length, 4 * channels.length * buffer.length)];
  for (let at = 0; at < buffer.length; at += PART) {
    parts.push(new Blob([encode("f32", channels.map((x) => x.subarray(at, at + PART)))]));
  }
  return new Blob(parts);
}

export async function openDemo() {
  const response = await fetch(DEMO);
  if (!response.ok) throw new Error(`The demo clip could not be loaded (${response.status}).`);
  return new File([await response.blob()], DEMO);
}

async function flacRate(file) {
  const head = new DataView(await file.slice(0, FLAC_RATE + 4).arrayBuffer());
  if (head.byteLength < FLAC_RATE + 4 || head.getUint32(0) !== 0x664c6143) return null; // "fLaC"
  const rate = head.getUint32(FLAC_RATE) >>> 12;
  return rate >= 8_000 && rate <= 96_000 ? rate : null; // what every browser can decode to
}

// The length of a file in seconds by the browser's player; 0 if it cannot be played, above LONG if it is unknown.
function lengthOf(file) {
  return new Promise((resolve) => {
    const player = new Audio();
    const address = URL.createObjectURL(file);
    const end = (seconds) => {
      URL.revokeObjectURL(address);
      resolve(Number.isFinite(seconds) ? seconds : LONG + 1);
    };
    player.preload = "metadata";
    player.onloadedmetadata = () => end(player.duration);
    player.onerror = () => end(0);
    player.src = address;
  });
}

// Pass files that are chosen or dropped to `take`.
export function acceptFiles({ drop, choose, input, take }) {
  choose.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    const [file] = input.files;
    input.value = "";
    if (file) take(file);
  });
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file) take(file);
  });
  addEventListener("dragover", (event) => event.preventDefault()); // a file dropped elsewhere must not replace the page
  addEventListener("drop", (event) => event.preventDefault());
}
