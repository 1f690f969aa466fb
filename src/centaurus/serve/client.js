// A client for `centaurus serve`: audio in, clean audio, keywords or words out. For browsers and for Node 22 or newer.
//
//   import { Stream } from "http://127.0.0.1:8765/client.js";
//   const live = await Stream.open("ws://127.0.0.1:8765", { task: "denoise", rate: 48000, onAudio: play });
//   await live.send(samples);      // Float32Array, channels interleaved; waits while the send buffer is full
//   const summary = await live.end();

const HIGH_WATER = 1 << 18; // bytes in the socket's buffer above which send() waits
const POLL = 5; // milliseconds between two checks of the socket's buffer

export class Stream {
  /**
   * Open a stream.
   * @param {string} url of the server, such as ws://127.0.0.1:8765
   * @param {object} options task (denoise, spot or transcribe), rate, channels, token; options of the task in `settings`;
   *   onAudio(Float32Array), onKeyword({keyword, time, confidence}), onWord({word, start, end, confidence}),
   *   onPartial(text), onError(Error)
   * @returns {Promise<Stream>}
   */
  static open(url, { task = "denoise", rate = 16000, channels = 1, token = null, settings = {}, ...callbacks } = {}) {
    const query = new URLSearchParams({ rate, channels, format: "f32le", ...settings });
    const protocols = token === null ? ["centaurus.v1"] : ["centaurus.v1", `bearer.${token}`];
    const socket = new WebSocket(`${url.replace(/\/$/, "")}/v1/${task}?${query}`, protocols);
    socket.binaryType = "arraybuffer";
    return new Promise((resolve, reject) => {
      const stream = new Stream(socket, callbacks, resolve, reject);
      socket.onmessage = (event) => stream.#receive(event.data);
      socket.onerror = () => stream.#fail(new Error(`no stream could be opened at ${url}: the server refused it, is full or is not running`));
      socket.onclose = (event) => stream.#fail(new Error(event.reason || `the server closed the stream (${event.code})`));
    });
  }

  #socket;
  #callbacks;
  #opened;
  #refused;
  #finished;
  #ended = false;

  constructor(socket, callbacks, opened, refused) {
    this.#socket = socket;
    this.#callbacks = callbacks;
    this.#opened = opened;
    this.#refused = refused;
    this.#finished = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#finished.catch(() => {}); // reported by end() or onError
  }

  #resolve;
  #reject;

  /** Send interleaved samples. */
  async send(samples) {
    while (this.#socket.bufferedAmount > HIGH_WATER) await new Promise((resume) => setTimeout(resume, POLL));
    if (this.#socket.readyState !== 1) return this.#finished;
    this.#socket.send(samples.slice().buffer);
  }

  /** Tell the server that everything was sent; resolves to its summary after all results have arrived. */
  async end() {
    if (this.#socket.readyState === 1) this.#socket.send(JSON.stringify({ type: "end" }));
    return this.#finished;
  }

  /** Disconnect without waiting for results. */
  close() {
    this.#ended = true;
    this.#socket.close();
  }

  #receive(data) {
    const { onAudio, onKeyword, onWord, onPartial } = this.#callbacks;
    if (typeof data !== "string") return onAudio?.(new Float32Array(data));
    const { type, ...message } = JSON.parse(data);
    if (type === "ready") {
      this.ready = message;
      this.#opened(this);
    } else if (type === "keyword") onKeyword?.(message);
    else if (type === "word") onWord?.(message);
    else if (type === "partial") onPartial?.(message.text);
    else if (type === "end") {
      this.#ended = true;
      this.#resolve(message);
      this.#socket.close();
    } else this.#fail(new Error(message.message));
    return undefined;
  }

  #fail(error) {
    if (this.#ended) return;
    this.#ended = true;
    this.#refused(error);
    this.#reject(error);
    this.#callbacks.onError?.(error);
  }
}
