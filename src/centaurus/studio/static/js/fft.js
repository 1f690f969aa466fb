// Levels of a short-time spectrum in dB: a Hann window and an in-place radix-2 FFT.

export class Spectrum {
  constructor(size) {
    this.size = size;
    this.window = Float64Array.from({ length: size }, (_, k) => 0.5 - 0.5 * Math.cos((2 * Math.PI * k) / size));
    this.re = new Float64Array(size);
    this.im = new Float64Array(size);
    this.cos = Float64Array.from({ length: size / 2 }, (_, k) => Math.cos((2 * Math.PI * k) / size));
    this.sin = Float64Array.from({ length: size / 2 }, (_, k) => -Math.sin((2 * Math.PI * k) / size));
    this.order = bitReversed(size);
  }

  // Levels of size / 2 bins; a full-scale sine is about 0 dB.
  levels(x, out) {
    const { size, re, im } = this;
    for (let k = 0; k < size; k++) {
      re[this.order[k]] = x[k] * this.window[k];
      im[k] = 0;
    }
    for (let half = 1; half < size; half *= 2) {
      const stride = size / (2 * half);
      for (let start = 0; start < size; start += 2 * half) {
        for (let k = 0; k < half; k++) {
          const c = this.cos[k * stride];
          const s = this.sin[k * stride];
          const a = start + k;
          const b = a + half;
          const r = re[b] * c - im[b] * s;
          const i = re[b] * s + im[b] * c;
          re[b] = re[a] - r;
          im[b] = im[a] - i;
          re[a] += r;
          im[a] += i;
        }
      }
    }
    const scale = 4 / size; // the window has a mean of one half, and a sine is half at positive, half at negative frequency
    for (let k = 0; k < size / 2; k++) {
      out[k] = 10 * Math.log10((re[k] * re[k] + im[k] * im[k]) * scale * scale + 1e-20);
    }
    return out;
  }
}

function bitReversed(size) {
  const bits = Math.log2(size);
  return Uint32Array.from({ length: size }, (_, k) => {
    let out = 0;
    for (let b = 0; b < bits; b++) out |= ((k >> b) & 1) << (bits - 1 - b);
    return out;
  });
}
