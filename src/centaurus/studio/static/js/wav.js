// WAV files piece by piece: a reader of a Blob that never loads the whole file, and headers for writing.

const PCM = 1;
const FLOAT = 3;
const EXTENSIBLE = 0xfffe;
const HEADER = 44;
const LARGEST = 0xffffffff - 1024; // bytes of data in a plain WAV file; larger ones are RF64
const SEARCHED = 1 << 20; // bytes in which the header must end

export class WavSource {
  // Opens a Blob; null if it is not a WAV file. Throws an Error with a message for the user if it cannot be read.
  static async open(blob) {
    const head = new DataView(await blob.slice(0, SEARCHED).arrayBuffer());
    if (head.byteLength < 12) return null;
    const kind = text(head, 0, 4);
    if ((kind !== "RIFF" && kind !== "RF64") || text(head, 8, 4) !== "WAVE") return null;
    let format = null;
    let position = 12;
    let long = null; // the length of the data in an RF64 file
    while (position + 8 <= head.byteLength) {
      const name = text(head, position, 4);
      const size = head.getUint32(position + 4, true);
      const body = position + 8;
      if (name === "ds64" && body + 24 <= head.byteLength) long = Number(head.getBigUint64(body + 8, true));
      if (name === "fmt " && body + 16 <= head.byteLength) format = readFormat(head, body, size);
      if (name === "data") {
        if (!format) throw new Error("This WAV file has no format chunk before its data: it is damaged.");
        const declared = size === 0xffffffff && long !== null ? long : size;
        return new WavSource(blob, format, body, Math.min(declared, blob.size - body));
      }
      position = body + size + (size % 2);
    }
    throw new Error("This WAV file has no data in its first megabyte: it is damaged or empty.");
  }

  constructor(blob, format, offset, bytes) {
    Object.assign(this, format, { blob, offset });
    this.frames = Math.floor(bytes / (this.channels * this.width));
    this.saved = this.sample === "s16" || this.sample === "u8" ? "s16" : "f32"; // format of the samples in results
  }

  // `count` frames from frame `start` on, fewer at the end, as a Float32Array for each channel.
  async read(start, count) {
    const frames = Math.max(0, Math.min(count, this.frames - start));
    const stride = this.channels * this.width;
    const from = this.offset + start * stride;
    const view = new DataView(await this.blob.slice(from, from + frames * stride).arrayBuffer());
    const sample = READERS[this.sample];
    return Array.from({ length: this.channels }, (_, channel) => {
      const out = new Float32Array(frames);
      for (let k = 0; k < frames; k++) out[k] = sample(view, k * stride + channel * this.width);
      return out;
    });
  }
}

const READERS = {
  u8: (view, at) => (view.getUint8(at) - 128) / 128,
  s16: (view, at) => view.getInt16(at, true) / 32768,
  s24: (view, at) => (view.getUint8(at) + (view.getInt16(at + 1, true) << 8)) / 8388608,
  s32: (view, at) => view.getInt32(at, true) / 2147483648,
  f32: (view, at) => finite(view.getFloat32(at, true)),
  f64: (view, at) => finite(view.getFloat64(at, true)),
};

function finite(x) {
  return Number.isFinite(x) ? x : 0;
}

function readFormat(view, at, size) {
  let tag = view.getUint16(at, true);
  const channels = view.getUint16(at + 2, true);
  const rate = view.getUint32(at + 4, true);
  const bits = view.getUint16(at + 14, true);
  if (tag === EXTENSIBLE && size >= 26) tag = view.getUint16(at + 24, true);
  const sample = { [PCM]: { 8: "u8", 16: "s16", 24: "s24", 32: "s32" }, [FLOAT]: { 32: "f32", 64: "f64" } }[tag]?.[bits];
  if (!sample) throw new Error(`This WAV file has ${bits}-bit samples in format ${tag}: only PCM and float are supported.`);
  if (channels < 1 || channels > 32) throw new Error(`This WAV file has ${channels} channels by its header: 1 to 32 are supported.`);
  if (rate < 1000 || rate > 768000) throw new Error(`This WAV file has a sample rate of ${rate} Hz by its header: it is damaged.`);
  return { channels, rate, sample, width: bits / 8 };
}

// The header of a WAV file with this many bytes of data; sample is "s16" or "f32".
export function header(sample, rate, channels, bytes) {
  const long = bytes > LARGEST;
  const extra = long ? 36 : 0;
  const view = new DataView(new ArrayBuffer(HEADER + extra));
  const width = sample === "s16" ? 2 : 4;
  put(view, 0, long ? "RF64" : "RIFF");
  view.setUint32(4, long ? 0xffffffff : HEADER - 8 + bytes, true);
  put(view, 8, "WAVE");
  if (long) {
    put(view, 12, "ds64");
    view.setUint32(16, 28, true);
    view.setBigUint64(20, BigInt(HEADER + extra - 8 + bytes), true);
    view.setBigUint64(28, BigInt(bytes), true);
    view.setBigUint64(36, BigInt(bytes / (channels * width)), true);
  }
  const at = 12 + extra;
  put(view, at, "fmt ");
  view.setUint32(at + 4, 16, true);
  view.setUint16(at + 8, sample === "s16" ? PCM : FLOAT, true);
  view.setUint16(at + 10, channels, true);
  view.setUint32(at + 12, rate, true);
  view.setUint32(at + 16, rate * channels * width, true);
  view.setUint16(at + 20, channels * width, true);
  view.setUint16(at + 22, width * 8, true);
  put(view, at + 24, "data");
  view.setUint32(at + 28, long ? 0xffffffff : bytes, true);
  return view.buffer;
}

// Channels of samples as the interleaved bytes of a WAV file.
export function encode(sample, channels) {
  const count = channels[0].length;
  const out = sample === "s16" ? new Int16Array(count * channels.length) : new Float32Array(count * channels.length);
  channels.forEach((x, channel) => {
    for (let k = 0; k < count; k++) {
      const value = sample === "s16" ? Math.round(Math.max(-1, Math.min(32767 / 32768, x[k])) * 32768) : x[k];
      out[k * channels.length + channel] = value;
    }
  });
  return out;
}

function text(view, at, length) {
  return String.fromCharCode(...new Uint8Array(view.buffer, at, length));
}

function put(view, at, letters) {
  for (let k = 0; k < letters.length; k++) view.setUint8(at + k, letters.charCodeAt(k));
}
