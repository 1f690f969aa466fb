// The keyword page: keywords with their confidence, connected words as captions, a wake word.

import { IGNORED, Spotting, Transcription } from "./decode.js";
import { addNode, closeAudio, loadModels, openContext, openMicrophone } from "./live.js";
import { feed, Network } from "./network.js";
import { action, byId, clock, download, element, say, showError, site, slider, State, upTo, whole, within } from "./page.js";
import { Resampler } from "./resample.js";
import { acceptFiles, openDemo, openSound } from "./sound.js";
import { Meter } from "./spectrogram.js";

const SHOWN = 10; // seconds of curves that are visible
const KEPT = 24; // keywords in the list
const RECENT = 12; // connected words on the page
const LINES = 6; // colours of the curves
const AWAKE = 4; // seconds after a wake word in which keywords count
const PAUSE = 0.8; // seconds of silence that end a caption
const LONGEST = 6; // seconds of a caption
const NAMED = 0.25; // confidence at which a curve is named
const LINE = 15; // pixels between two lines of names

const state = new State({
  threshold: { default: null, read: within(0.05, 0.99) }, // null is the model's own
  window: { default: null, read: whole(0, 1000) }, // ms
  wake: { default: "", read: upTo(30) },
});
const meter = new Meter(byId("meter"));
let job = null;
let decoders = null;
let words = []; // of the captions, to be saved
let awakeUntil = -Infinity;

const moveThreshold = slider(state, "threshold", (value) => `${Math.round(100 * value)} %`, (value) => decoders?.change({ threshold: value }));
const moveWindow = slider(state, "window", (value) => `${value} ms`, (value) => decoders?.change({ window: value / 1000 }));
byId("wake").addEventListener("change", async ({ target }) => {
  state.set("wake", target.value);
  const available = await models();
  byId("model").textContent = running(available).map(({ name }) => name).join(", ");
  if (job && available.wakes.length) say("The new wake word takes effect with the next recording.");
});

// Show what the keyword model brings, where nothing else was chosen. That there is none is said when it is needed.
models().then(
  ({ keyword }) => {
    const { threshold, window } = spotter(keyword);
    moveThreshold(threshold);
    moveWindow(Math.round(1000 * window));
  },
  () => {},
);

async function models() {
  const available = (await site()).models;
  const classifiers = available.filter(({ task }) => task === "classifier").sort((a, b) => b.classes.length - a.classes.length);
  const [keyword, ...wakes] = classifiers; // the one with the most words; each of the others detects a wake word
  if (!keyword) throw new Error("This site has no keyword model: its models/ folder does not contain one.");
  const wake = wakes.find(({ classes }) => classes.includes(state.get("wake")));
  return { keyword, wakes, wake, recognizer: available.find(({ task }) => task === "recognizer") };
}

const running = ({ keyword, recognizer, wake }) => [keyword, recognizer, wake].filter(Boolean);
const loadRunning = async () => loadModels(running(await models()).map(({ name }) => name));

// Decode logits to keywords and words; made anew for every recording.
class Decoders {
  constructor({ keyword, recognizer, wake }) {
    this.seconds = keyword.frame / keyword.rate;
    this.spotters = new Map([keyword, wake].filter(Boolean).map((model) => [model.name, spotter(model)]));
    this.transcription = recognizer && new Transcription(recognizer.tokens, recognizer.frame / recognizer.rate);
    this.keyword = keyword.name;
    const names = this.spotters.get(keyword.name).keywords.map((k) => keyword.classes[k]);
    this.curves = new Curves(byId("scores"), names, this.seconds);
  }

  change(settings) {
    for (const spotting of this.spotters.values()) Object.assign(spotting, settings);
  }

  push(name, logits) {
    const spotting = this.spotters.get(name);
    const outputs = spotting ? spotting.classes.length : this.transcription.tokens.length;
    for (let at = 0; at < logits.length; at += outputs) {
      const frame = logits.subarray(at, at + outputs);
      if (spotting) this.spot(name, spotting, frame);
      else this.transcribe(frame);
    }
  }

  spot(name, spotting, frame) {
    const { scores, keyword } = spotting.push(frame);
    if (keyword) showKeyword(keyword);
    if (name !== this.keyword) return;
    this.curves.push(scores, spotting.threshold);
    showAwake(spotting.frame * this.seconds);
  }

  transcribe(frame) {
    const word = this.transcription.push(frame);
    if (word) words.push(word);
    showCaptions(this.transcription.open);
  }

  flush() {
    const last = this.transcription?.flush();
    if (last) words.push(last);
    showCaptions(null);
    meter.clear();
  }
}

// What was chosen on the page, else what the model brings, else what is usual.
function spotter({ classes, frame, rate, threshold, window, caution }) {
  const chosen = state.get("window");
  return new Spotting(classes, frame / rate, {
    threshold: state.get("threshold") ?? threshold,
    window: chosen === null ? window : chosen / 1000,
    caution,
  });
}

// Confidence over time, a curve for each word that reaches 5 %.
class Curves {
  constructor(canvas, names, seconds) {
    this.canvas = canvas;
    this.names = names;
    this.frames = Math.round(SHOWN / seconds);
    this.past = [];
    this.colours = new Map();
    this.threshold = 0.6;
    this.context = canvas.getContext("2d", { alpha: false });
    this.draw();
  }

  push(scores, threshold) {
    this.threshold = threshold;
    this.past.push(scores);
    if (this.past.length > this.frames) this.past.shift();
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
    });
  }

  draw() {
    const { context: c, past, frames } = this;
    const { width, height } = this.fit();
    const y = (score) => height - 8 - score * (height - 26);
    const x = (k) => ((frames - past.length + k) / frames) * width;
    c.fillStyle = "#080a22";
    c.fillRect(0, 0, width, height);
    c.strokeStyle = "#ffffff66";
    c.setLineDash([6, 6]);
    c.beginPath();
    c.moveTo(0, y(this.threshold));
    c.lineTo(width, y(this.threshold));
    c.stroke();
    c.setLineDash([]);
    c.font = "13px system-ui, sans-serif";
    const labels = [];
    for (const k of this.names.keys()) {
      const top = past.reduce((best, scores, at) => (scores[k] > past[best][k] ? at : best), 0);
      if (!past.length || past[top][k] < 0.05) {
        this.colours.delete(k);
        continue;
      }
      c.strokeStyle = c.fillStyle = this.colour(k);
      c.lineWidth = 2;
      c.beginPath();
      past.forEach((scores, at) => c.lineTo(x(at), y(scores[k])));
      c.stroke();
      if (past[top][k] >= NAMED) labels.push({ name: this.names[k], colour: c.fillStyle, score: past[top][k], at: x(top) });
    }
    this.name(labels, width, y);
  }

  // Draw names above their peaks, the most confident first; one that would cover another is moved below it.
  name(labels, width, y) {
    const taken = [];
    for (const { name, colour, score, at } of labels.sort((one, other) => other.score - one.score)) {
      const wide = this.context.measureText(name).width;
      const left = Math.max(2, Math.min(at - wide / 2, width - wide - 2));
      let base = Math.max(LINE, y(score) - 6);
      const covers = (other) => Math.abs(base - other.base) < LINE && left < other.right + 4 && other.left < left + wide + 4;
      while (taken.some(covers)) base += LINE;
      taken.push({ base, left, right: left + wide });
      this.context.fillStyle = colour;
      this.context.fillText(name, left, base);
    }
  }

  // Give the canvas one pixel for each of the screen's; returns its size in CSS pixels.
  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const scale = globalThis.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    return { width, height };
  }

  colour(k) {
    if (!this.colours.has(k)) {
      const used = new Set(this.colours.values());
      const free = PALETTE.findIndex((_, index) => !used.has(index));
      this.colours.set(k, free < 0 ? k % LINES : free);
    }
    return PALETTE[this.colours.get(k)];
  }
}

const PALETTE = ["#fbd46d", "#7fd1ff", "#ff9aa2", "#8ff0b4", "#d6b3ff", "#ffb066"]; // light on the dark canvas

function showKeyword({ word, time, confidence }) {
  const wake = word === state.get("wake");
  if (wake) awakeUntil = time + AWAKE;
  const note = `${Math.round(100 * confidence)} % at ${clock(time)}`;
  byId("found").prepend(element("li", wake ? { class: "wake" } : {}, word, element("span", {}, note)));
  while (byId("found").children.length > KEPT) byId("found").lastChild.remove();
}

function showAwake(time) {
  const wake = state.get("wake");
  const text = !wake ? "" : time < awakeUntil ? `Awake: “${wake}” was detected.` : `Waiting for “${wake}”.`;
  if (byId("awake").textContent !== text) byId("awake").textContent = text;
}

function showCaptions(open) {
  const all = open ? [...words, { ...open, open: true }] : words;
  byId("captions").replaceChildren(
    ...all.slice(-RECENT).map(({ word, open: unfinished }) => element("span", unfinished ? { class: "open" } : {}, `${word} `)),
  );
  byId("save").disabled = words.length === 0;
}

// Words as captions that end at a pause or after six seconds.
function lines(all) {
  const lines = [];
  for (const word of all) {
    const line = lines.at(-1);
    const fits = line && word.start - line.at(-1).end < PAUSE && word.end - line[0].start <= LONGEST;
    if (fits) line.push(word);
    else lines.push([word]);
  }
  return lines;
}

function vtt() {
  const time = (s) => `${clock(s).padStart(8, "00:")}.${String(Math.floor((s % 1) * 1000)).padStart(3, "0")}`;
  const cues = lines(words).map((line) => `\n${time(line[0].start)} --> ${time(line.at(-1).end)}\n${line.map(({ word }) => word).join(" ")}\n`);
  return `WEBVTT\n${cues.join("")}`;
}

async function begin(next) {
  showError(null);
  await job?.end();
  job = next;
  words = [];
  awakeUntil = -Infinity;
  byId("found").replaceChildren();
  byId("captions").replaceChildren();
  byId("stop").hidden = false;
  decoders = new Decoders(await models());
}

class Live {
  async start() {
    this.stream = await openMicrophone();
    try {
      const { keyword } = await models();
      const loaded = await loadRunning();
      const { context, source } = await openContext(keyword.rate, this.stream);
      this.context = context;
      const handle = {
        logits: ({ name, logits }) => decoders.push(name, logits),
        level: ({ power }) => meter.set(power),
        load: ({ load, dropped }) => {
          byId("load").textContent = `${(100 * load).toFixed(1)} %`;
          byId("dropped").textContent = String(dropped);
        },
      };
      this.node = addNode(context, "centaurus-listener", { models: loaded }, handle, showError);
      source.connect(this.node).connect(context.destination);
      say("Listening. Audio stays in this browser.");
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  async end() {
    this.node?.port.postMessage({ kind: "stop" });
    await this.close();
    decoders?.flush();
  }

  close() {
    return closeAudio(this);
  }
}

// Runs a file in pieces of an eighth of a second, as fast as possible; the page is drawn between pieces.
class FileJob {
  constructor(file) {
    this.file = file;
  }

  async start() {
    const { keyword } = await models();
    const loaded = await loadRunning();
    const source = await openSound(this.file, keyword.rate);
    const lines = loaded.map(({ name, bytes }) => {
      const network = new Network(bytes);
      return { name, network, resampler: new Resampler(source.rate, network.rate), fill: 0 };
    });
    const piece = Math.round(source.rate / 8);
    for (let at = 0; at < source.frames && !this.ended; at += piece) {
      const sound = await source.read(at, piece);
      const x = sound[0].map((_, k) => sound.reduce((sum, channel) => sum + channel[k], 0) / sound.length);
      meter.push(x);
      const last = at + piece >= source.frames;
      for (const line of lines) {
        listen(line, line.resampler.process(x));
        if (last) listen(line, line.resampler.flush());
      }
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
    if (this.ended) return;
    for (const line of lines) if (line.fill) listen(line, new Float32Array(line.network.hop - line.fill));
    decoders.flush();
    job = null;
    byId("stop").hidden = true;
    say(`${this.file.name}: ${words.length} connected words, ${byId("found").children.length} keywords.`);
  }

  async end() {
    this.ended = true;
  }
}

function listen(line, x) {
  line.fill = feed(line.network, x, line.fill, (output) => decoders.push(line.name, output));
}

async function start(next) {
  await begin(next);
  try {
    await next.start();
  } catch (error) {
    job = null;
    byId("stop").hidden = true;
    showError(error);
  }
}

action(byId("microphone"), () => start(new Live()));
action(byId("demo"), async () => start(new FileJob(await openDemo())));
action(byId("stop"), async () => {
  const ended = job;
  job = null;
  byId("stop").hidden = true;
  await ended?.end();
  say("Stopped.");
});
action(byId("save"), async () => download(new Blob([vtt()], { type: "text/vtt" }), "captions.vtt"));
acceptFiles({ drop: byId("drop"), choose: byId("choose"), input: byId("file"), take: (file) => start(new FileJob(file)) });

models().then((available) => {
  const names = available.keyword.classes.filter((name) => !IGNORED.has(name));
  const wakes = available.wakes.flatMap(({ classes }) => classes.filter((name) => !IGNORED.has(name)));
  const choices = [...new Set([...wakes, ...names])];
  byId("vocabulary").textContent = `The words it knows: ${names.join(", ")}.`;
  byId("wake").append(...choices.map((name) => element("option", { value: name }, name)));
  if (!choices.includes(state.get("wake"))) state.values.wake = "";
  byId("wake").value = state.get("wake");
  byId("model").textContent = running(available).map(({ name }) => name).join(", ");
  decoders = new Decoders(available);
}, showError);
