// Streaming sample-rate conversion by a rational factor: a Kaiser-windowed sinc in polyphase form. The result is not delayed
// (output k is at input time k * from / to) and has exactly ceil(samples * to / from) samples after flush.

const ATTENUATION = 96; // dB of images and aliases, about the dynamic range of 16 bits
const BETA = 0.1102 * (ATTENUATION - 8.7); // Kaiser's formula
export const FINE = 128; // zero crossings on either side: a transition band of 3 % of the lower rate, for files
export const QUICK = 40; // 10 %, and 2.5 ms of look-ahead at 16 kHz, for live audio

export class Resampler {
  constructor(from, to, zeros = FINE) {
    const divisor = gcd(from, to);
    this.up = to / divisor;
    this.down = from / divisor;
    this.identity = from === to;
    const low = Math.min(1, to / from); // bandwidth relative to the input's
    this.half = this.identity ? 0 : Math.ceil(zeros / low); // input samples on either side
    if (!this.identity) this.phases = makePhases(this.up, this.half, low, zeros);
    this.reset();
  }

  reset() {
    this.line = new Float32Array(this.half); // zeros before the beginning
    this.first = -this.half; // input position of line[0]
    this.taken = 0;
    this.returned = 0;
  }

  process(x) {
    this.taken += x.length;
    if (this.identity) {
      this.returned += x.length;
      return x;
    }
    const line = new Float32Array(this.line.length + x.length);
    line.set(this.line);
    line.set(x, this.line.length);
    this.line = line;
    return this.make(Math.floor(((this.taken - this.half - 1) * this.up) / this.down) + 1);
  }

  flush() {
    const total = Math.ceil((this.taken * this.up) / this.down);
    let last = new Float32Array(0);
    if (!this.identity && total > this.returned) {
      const line = new Float32Array(this.line.length + this.half + 1);
      line.set(this.line);
      this.line = line;
      last = this.make(total);
    }
    this.reset();
    return last;
  }

  make(until) {
    const count = Math.max(0, until - this.returned);
    const out = new Float32Array(count);
    const width = 2 * this.half + 1;
    for (let k = 0; k < count; k++) {
      const position = (this.returned + k) * this.down;
      const whole = Math.floor(position / this.up);
      const taps = this.phases[position - whole * this.up];
      const start = whole - this.half - this.first;
      let sum = 0;
      for (let n = 0; n < width; n++) sum += taps[n] * this.line[start + n];
      out[k] = sum;
    }
    this.returned += count;
    const keep = Math.floor((this.returned * this.down) / this.up) - this.half;
    if (keep > this.first) {
      this.line = this.line.slice(Math.min(keep - this.first, this.line.length));
      this.first = keep;
    }
    return out;
  }
}

function makePhases(up, half, low, zeros) {
  // The -6 dB point is half a transition band below the lower Nyquist frequency.
  const transition = (ATTENUATION - 8) / (2.285 * Math.PI * 2 * zeros);
  const cutoff = low * (1 - transition / 2);
  const norm = bessel(BETA);
  return Array.from({ length: up }, (_, phase) => {
    const taps = new Float64Array(2 * half + 1);
    let sum = 0;
    for (let n = 0; n < taps.length; n++) {
      const t = n - half - phase / up;
      const edge = t / (half + 1);
      const window = bessel(BETA * Math.sqrt(Math.max(0, 1 - edge * edge))) / norm;
      taps[n] = cutoff * sinc(cutoff * t) * window;
      sum += taps[n];
    }
    return taps.map((tap) => tap / sum); // unity gain at 0 Hz
  });
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

// Modified Bessel function of order zero, by its series.
function bessel(x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; term > 1e-12 * sum; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

export function gcd(a, b) {
  return b === 0 ? a : gcd(b, a % b);
}
