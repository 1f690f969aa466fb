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
  }
}

// Runs a step for every complete hop; `fill` samples are already buffered, and `emit` gets each output. Returns the
// number of samples buffered afterwards.
export function feed(network, x, fill, emit) {
  for (let at = 0; at < x.length; ) {
    const count = Math.min(network.hop - fill, x.length - at);
    network.input.set(x.subarray(at, at + count), fill);
    fill += count;
    at += count;
    if (fill < network.hop) break;
    network.step();
    fill = 0;
    emit(network.output);
  }
  return fill;
}
