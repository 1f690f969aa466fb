// A network's step as a WebAssembly module: hop samples in, frames of outputs out. One instance is one stream.

export class Network {
  // bytes: a module that `centaurus export` wrote. Throws an Error with a message for the user if it cannot be run.
  constructor(bytes) {
    let instance;
    try {
      instance = new WebAssembly.Instance(new WebAssembly.Module(bytes), {});
    } catch (error) {
      throw new Error(`The model cannot be run by this browser (WebAssembly with SIMD is needed): ${error.message}`);
    }
    const e = instance.exports;
    for (const name of ["init", "step", "input", "output", "rate", "hop", "delay", "frames", "outputs"]) {
      if (typeof e[name] !== "function") throw new Error(`The model's module does not export ${name}().`);
    }
    this.rate = e.rate();
    this.hop = e.hop();
    this.delay = e.delay();
    this.frames = e.frames();
    this.outputs = e.outputs();
    e.init();
    // The module never grows its memory, so the views stay valid.
    this.input = new Float32Array(e.memory.buffer, e.input(), this.hop);
    this.output = new Float32Array(e.memory.buffer, e.output(), this.frames * this.outputs);
    this.step = e.step;
    this.reset = e.init;
    this.settings = readSettings(e);
  }

  // Runs a step for every complete hop; `fill` samples are already buffered, and `emit` gets each output. Returns the
  // number of samples buffered afterwards.
  feed(x, fill, emit) {
    for (let at = 0; at < x.length; ) {
      const count = Math.min(this.hop - fill, x.length - at);
      this.input.set(x.subarray(at, at + count), fill);
      fill += count;
      at += count;
      if (fill < this.hop) break;
      this.step();
      fill = 0;
      emit(this.output);
    }
    return fill;
  }
}

function readSettings(e) {
  if (typeof TextDecoder === "undefined" || !e.settings) return {}; // an audio worklet has no TextDecoder
  const bytes = new Uint8Array(e.memory.buffer, e.settings(), e.settings_bytes());
  return JSON.parse(new TextDecoder().decode(bytes.slice()));
}
