// Spectrograms on a canvas: scrolling with live audio, or a whole file filled from left to right.

import { Spectrum } from "./fft.js";

const SIZE = 1024; // samples of a window
const HOP = 256; // samples between columns
const ROWS = 256; // pixels of height
const WIDTH = 900; // pixels
const RESERVE = 2; // columns held back: audio arrives in bursts, and every screen frame should scroll
const FLOOR = -95; // dB of the darkest colour
const TOP = -15; // dB of the lightest colour
// From dark blue through violet and orange to pale yellow: lightness is monotonic, so the scale works in grey too.
const STOPS = [
  [8, 10, 34], [38, 22, 88], [88, 30, 120], [142, 44, 118], [196, 66, 96], [236, 108, 68], [250, 164, 72], [252, 222, 140],
];
const PALETTE = Array.from({ length: 256 }, (_, k) => {
  const at = (k / 255) * (STOPS.length - 1);
  const low = Math.min(STOPS.length - 2, Math.floor(at));
  return STOPS[low].map((c, i) => Math.round(c + (at - low) * (STOPS[low + 1][i] - c)));
});

export class Spectrogram {
  constructor(canvas) {
    this.canvas = canvas;
    canvas.height = ROWS;
    this.context = canvas.getContext("2d", { alpha: false });
    this.spectrum = new Spectrum(SIZE);
    this.pixels = this.context.createImageData(1, ROWS);
    this.pixels.data.fill(255); // opaque
    this.clear();
  }

  // Clears the picture and makes room for this many columns.
  clear(width = WIDTH) {
    this.width = Math.max(1, Math.min(WIDTH, width));
    this.canvas.width = this.width;
    this.line = new Float32Array(SIZE);
    this.fill = 0;
    this.waiting = [];
    this.filled = 0;
    this.context.fillStyle = `rgb(${STOPS[0].join(",")})`;
    this.context.fillRect(0, 0, this.width, ROWS);
  }

  // Add live samples; they are drawn with the next frame of the screen.
  push(x) {
    for (let at = 0; at < x.length; ) {
      const count = Math.min(HOP - this.fill, x.length - at);
      this.line.set(x.subarray(at, at + count), SIZE - HOP + this.fill);
      this.fill += count;
      at += count;
      if (this.fill === HOP) {
        this.waiting.push(this.spectrum.levels(this.line, new Float32Array(SIZE / 2)));
        this.line.copyWithin(0, HOP);
        this.fill = 0;
      }
    }
    if (this.waiting.length > WIDTH) this.waiting.splice(0, this.waiting.length - WIDTH);
    if (this.waiting.length) this.later(() => this.scroll());
  }

  // Add columns of a whole file, from left to right.
  add(columns) {
    this.waiting.push(...columns);
    this.later(() => {
      for (const levels of this.waiting) this.draw(levels, this.filled++);
      this.waiting = [];
    });
  }

  later(work) {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      work();
    });
  }

  scroll() {
    const columns = this.waiting.splice(0, Math.max(1, this.waiting.length - RESERVE));
    this.context.drawImage(this.canvas, -columns.length, 0);
    columns.forEach((levels, k) => this.draw(levels, this.width - columns.length + k));
    if (this.waiting.length) this.later(() => this.scroll());
  }

  draw(levels, x) {
    const { pixels } = this;
    const each = levels.length / ROWS;
    for (let y = 0; y < ROWS; y++) {
      let top = levels[(ROWS - 1 - y) * each];
      for (let k = 1; k < each; k++) top = Math.max(top, levels[(ROWS - 1 - y) * each + k]);
      const shade = Math.max(0, Math.min(255, Math.round(((top - FLOOR) / (TOP - FLOOR)) * 255)));
      const [red, green, blue] = PALETTE[shade];
      pixels.data[4 * y] = red;
      pixels.data[4 * y + 1] = green;
      pixels.data[4 * y + 2] = blue;
    }
    this.context.putImageData(pixels, x, 0);
  }
}

// A level meter from -60 to 0 dBFS: rises at once, falls slowly.
export class Meter {
  constructor(node) {
    this.node = node;
    this.bar = node.querySelector(".bar");
    this.level = -60;
  }

  push(x) {
    let power = 0;
    for (let k = 0; k < x.length; k++) power += x[k] * x[k];
    this.set(power / x.length);
  }

  clear() {
    this.level = -60;
    this.set(0);
  }

  set(power) {
    const level = Math.max(-60, Math.min(0, 10 * Math.log10(power + 1e-12)));
    this.level = Math.max(level, this.level - 1.2); // decays slowly enough to be read
    const now = Math.round(this.level);
    this.bar.style.setProperty("--share", String((this.level + 60) / 60));
    if (this.node.getAttribute("aria-valuenow") !== String(now)) {
      this.node.setAttribute("aria-valuenow", String(now));
      this.node.setAttribute("aria-valuetext", `${now} dBFS`);
    }
  }
}
