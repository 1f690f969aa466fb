// The denoising page: live from the microphone, or from a file.

import { addNode, closeAudio, openContext, openMicrophone } from "./live.js";
import { action, byId, clock, download, element, loadModule, oneOf, say, showError, site, slider, startWorker, State, upTo, whole } from "./page.js";
import { Network } from "./network.js";
import { Result } from "./result.js";
import { acceptFiles, openDemo, openSound } from "./sound.js";
import { Meter, Spectrogram } from "./spectrogram.js";
import { cleanedShare } from "./stream.js";
import { encode, header } from "./wav.js";

const QUEUED = 4; // pieces of audio, of one second, queued for the player
const FADING = 100; // ms in which a stopped player fades out
const PART = 10; // seconds of a recording in one Blob, which browsers can move to disk
const LIMITS = 40; // largest attenuation limit in dB; 0 is no limit

const state = new State({
  mix: { default: 100, read: whole(0, 100) },
  limit: { default: 0, read: whole(0, LIMITS) },
  listen: { default: "cleaned", read: oneOf(["cleaned", "original"]) },
  model: { default: "denoise-16k", read: upTo(40) },
});
const pictures = { before: new Spectrogram(byId("before")), after: new Spectrogram(byId("after")) };
const meters = { before: new Meter(byId("meter-before")), after: new Meter(byId("meter-after")) };
const heads = [...document.querySelectorAll(".head")];

let job = null; // the recording or file in progress, with end()
let result = null; // the finished result, with save() and original()
let player = null;

const share = () => cleanedShare(state.get("mix") / 100, state.get("limit"));
const bypass = () => state.get("listen") === "original";

function amountChanged() {
  job?.amount?.();
  player?.amount();
}

slider(state, "mix", (value) => `${value} % cleaned`, amountChanged);
slider(state, "limit", (value) => (value ? `at most ${value} dB` : "none"), amountChanged);
for (const choice of document.querySelectorAll("input[name=listen]")) {
  choice.checked = choice.value === state.get("listen");
  choice.addEventListener("change", () => {
    state.set("listen", choice.value);
    amountChanged();
  });
}

async function denoiser() {
  const model = byId("model").value;
  if (!model) throw new Error("This site has no denoiser: its models/ folder does not contain one.");
  const bytes = await loadModule(model);
  return { bytes, network: new Network(bytes) };
}

async function begin(next) {
  showError(null);
  await job?.end();
  player?.end();
  player = result = null;
  byId("transport").hidden = true;
  byId("save").disabled = byId("save-original").disabled = true;
  for (const head of heads) head.hidden = true;
  job = next;
  byId("stop").hidden = !next;
}

function clearMeters() {
  meters.before.clear();
  meters.after.clear();
}

function showLoad({ load, dropped }) {
  byId("load").textContent = `${(100 * load).toFixed(load < 0.1 ? 1 : 0)} %`;
  byId("dropped").textContent = String(dropped);
}

// Live: from the microphone through the audio thread to the page.

class Live {
  async start() {
    say("Opening the microphone …");
    const stream = await openMicrophone();
    this.stream = stream;
    try {
      const { bytes, network } = await denoiser();
      const { context, source } = await openContext(network.rate, stream);
      this.context = context;
      this.recordings = { dry: new Recording(context.sampleRate), wet: new Recording(context.sampleRate) };
      const options = { bytes, share: share(), bypass: bypass() };
      const handle = { ready: (m) => this.ready(m), sound: (m) => this.sound(m), load: showLoad, stopped: () => this.stopped?.() };
      this.node = addNode(context, "centaurus-denoiser", options, handle, (error) => this.fail(error));
      this.speaker = new GainNode(context, { gain: byId("monitor").checked ? 1 : 0 });
      source.connect(this.node).connect(this.speaker).connect(context.destination);
      stream.getAudioTracks()[0].addEventListener("ended", () => this.fail(new Error("The microphone was disconnected.")));
      pictures.before.clear();
      pictures.after.clear();
      byId("speed").textContent = "live";
      say("Listening. Audio stays in this browser.");
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  ready({ lag, latency, rate }) {
    this.lag = lag; // samples at the beginning that precede the input
    const output = (this.context.baseLatency ?? 0) + (this.context.outputLatency ?? 0);
    const network = (1000 * latency) / rate;
    byId("latency").textContent = `${network.toFixed(0)} ms + ${(1000 * output).toFixed(0)} ms of the device`;
  }

  sound({ dry: allDry, wet: allWet }) {
    const skip = Math.min(this.lag, allDry.length);
    this.lag -= skip;
    if (skip === allDry.length) return;
    const [dry, wet] = [allDry.subarray(skip), allWet.subarray(skip)];
    this.recordings.dry.push(dry);
    this.recordings.wet.push(wet);
    pictures.before.push(dry);
    pictures.after.push(wet);
    meters.before.push(dry);
    meters.after.push(wet);
  }

  amount() {
    this.node?.port.postMessage({ kind: "amount", share: share() });
    this.node?.port.postMessage({ kind: "listen", bypass: bypass() });
  }

  monitor(on) {
    this.speaker?.gain.setTargetAtTime(on ? 1 : 0, this.context.currentTime, 0.02);
  }

  fail(error) {
    showError(error);
    stop();
  }

  async end() {
    if (this.node) {
      const done = new Promise((resolve) => (this.stopped = resolve));
      this.node.port.postMessage({ kind: "stop" });
      await Promise.race([done, new Promise((resolve) => setTimeout(resolve, 500))]);
    }
    await this.close();
    const { dry, wet } = this.recordings ?? {};
    if (!wet?.samples) return;
    result = { save: async () => wet.wav(), original: async () => dry.wav(), name: "recording" };
    offerSave(`${clock(wet.samples / wet.rate)} recorded, at ${wet.rate / 1000} kHz in 32-bit float.`);
  }

  async close() {
    await closeAudio(this);
    clearMeters();
  }
}

class Recording {
  constructor(rate) {
    this.rate = rate;
    this.parts = [];
    this.pending = [];
    this.samples = this.count = 0;
  }

  push(x) {
    this.pending.push(encode("f32", [x]));
    this.samples += x.length;
    this.count += x.length;
    if (this.count >= PART * this.rate) {
      this.parts.push(new Blob(this.pending));
      this.pending = [];
      this.count = 0;
    }
  }

  wav() {
    return new Blob([header("f32", this.rate, 1, 4 * this.samples), ...this.parts, ...this.pending], { type: "audio/wav" });
  }
}

// Files: a worker denoises, then a player plays input and output in parallel.

class FileJob {
  constructor(file) {
    this.file = file;
  }

  async start() {
    say(`Opening ${this.file.name} …`);
    const { bytes, network } = await denoiser();
    const source = await openSound(this.file, network.rate);
    const latency = (1000 * (network.hop + network.delay)) / network.rate;
    byId("latency").textContent = `${latency.toFixed(0)} ms live; none in files`;
    byId("work").hidden = false;
    this.worker = startWorker();
    const seconds = source.frames / source.rate;
    const data = await new Promise((resolve, reject) => {
      this.reject = reject;
      this.worker.onerror = () => reject(new Error("The file was not cleaned: the worker could not be started."));
      this.worker.onmessage = ({ data: message }) => {
        if (message.kind === "error") reject(new Error(message.message));
        if (message.kind === "done") resolve(message);
        if (message.kind === "begin") {
          pictures.before.clear(message.columns);
          pictures.after.clear(message.columns);
        }
        if (message.kind === "progress") this.progress(message, seconds, source.rate);
      };
      this.worker.postMessage({ bytes, blob: source.blob, saved: source.saved });
    }).finally(() => {
      this.worker.terminate();
      byId("work").hidden = true;
    });
    this.finish(source, data, seconds);
  }

  progress({ frames, took, columns }, seconds, rate) {
    const done = frames / rate;
    pictures.before.add(columns.map(([before]) => before));
    pictures.after.add(columns.map(([, after]) => after));
    byId("progress").value = done / seconds;
    const left = took > 1 && done < seconds ? `, ${clock((took / done) * (seconds - done) + 0.5)} left` : "";
    byId("progress-text").textContent = `${clock(done)} of ${clock(seconds)}${left}`;
    if (took > 0) byId("speed").textContent = `${Math.round(done / took)} × real time`;
  }

  finish(source, data, seconds) {
    const made = new Result(source, data);
    const name = this.file.name.replace(/\.[^.]*$/, "") || "sound";
    result = { save: (progress) => made.save(share(), progress), original: null, name };
    player = new Player(made, seconds);
    job = null;
    byId("stop").hidden = true;
    byId("transport").hidden = false;
    offerSave(`${clock(seconds)}, ${data.channels === 1 ? "mono" : `${data.channels} channels`}, ${data.fileRate / 1000} kHz.`);
    say(`${this.file.name} was cleaned.`);
  }

  async end() {
    this.worker?.terminate();
    this.reject?.(new Error("Stopped."));
  }
}

class Player {
  constructor(made, seconds) {
    this.made = made;
    this.seconds = seconds;
    this.position = 0;
    this.run = null;
    this.show();
  }

  async play() {
    const { made } = this;
    const start = Math.min(Math.floor(this.position * made.fileRate), made.frames - 1);
    const { context } = await openContext(made.fileRate, null);
    const run = { context, queued: 0, stopped: false };
    this.run = run;
    const handle = {
      position: ({ position, queued }) => this.moved(run, position, queued),
      load: showLoad,
      finished: () => this.pause(0),
    };
    const options = { start, share: this.share() };
    run.node = addNode(context, "centaurus-player", options, handle, showError, Math.min(2, made.channels));
    run.node.connect(context.destination);
    byId("play").textContent = "Pause";
    this.feed(run, start).catch(showError);
  }

  async feed(run, start) {
    for await (const { dry, wet } of this.made.pieces(start)) {
      if (run.stopped) return;
      meters.before.push(dry[0]);
      meters.after.push(wet[0]);
      run.node.port.postMessage({ kind: "sound", dry, wet });
      run.queued += 1;
      while (run.queued >= QUEUED && !run.stopped) await new Promise((resolve) => (run.more = resolve));
    }
    if (!run.stopped) run.node.port.postMessage({ kind: "end" });
  }

  moved(run, position, queued) {
    if (run.stopped) return;
    run.queued = queued;
    run.more?.();
    this.position = position / this.made.fileRate;
    this.show();
  }

  show() {
    const at = this.seconds ? this.position / this.seconds : 0;
    byId("time").textContent = `${clock(this.position)} / ${clock(this.seconds)}`;
    byId("position").value = at;
    byId("position").setAttribute("aria-valuetext", `${clock(this.position)} of ${clock(this.seconds)}`);
    for (const head of heads) {
      head.hidden = false;
      head.style.setProperty("--at", at);
    }
  }

  share() {
    return bypass() ? 0 : share();
  }

  amount() {
    this.run?.node.port.postMessage({ kind: "amount", share: this.share() });
  }

  pause(position = this.position) {
    const { run } = this;
    this.position = position;
    byId("play").textContent = "Play";
    if (run) {
      run.stopped = true;
      run.more?.();
      run.node.port.postMessage({ kind: "stop" });
      setTimeout(() => run.context.close(), FADING);
    }
    this.run = null;
    clearMeters();
    this.show();
  }

  async seek(share) {
    const playing = this.run !== null;
    this.pause(share * this.seconds);
    if (playing) await this.play();
  }

  end() {
    if (this.run) this.pause();
  }
}

function offerSave(text) {
  byId("save").disabled = false;
  byId("save-original").disabled = false;
  byId("save-original").hidden = !result.original;
  byId("save-hint").textContent = text;
}

async function take(file) {
  const next = new FileJob(file);
  await begin(next);
  try {
    await next.start();
  } catch (error) {
    if (job === next) {
      job = null;
      byId("stop").hidden = true;
    }
    if (error.message === "Stopped.") say("Stopped.");
    else showError(error);
  }
}

async function stop() {
  const ended = job;
  job = null;
  byId("stop").hidden = true;
  await ended?.end();
  if (ended) say("Stopped.");
}

action(byId("microphone"), async () => {
  const live = new Live();
  await begin(live);
  try {
    await live.start();
  } catch (error) {
    job = null;
    byId("stop").hidden = true;
    say("");
    throw error;
  }
});
action(byId("demo"), async () => take(await openDemo()));
action(byId("stop"), stop);
action(byId("play"), async () => {
  if (player?.run) player.pause();
  else await player?.play();
});
action(byId("save"), async () => {
  const { save, name } = result;
  download(await save((part) => say(`Writing ${Math.round(100 * part)} % …`)), `${name}.denoised.wav`);
  say(`${name}.denoised.wav is in your downloads.`);
});
action(byId("save-original"), async () => download(await result.original(), `${result.name}.wav`));
byId("monitor").addEventListener("change", ({ target }) => job?.monitor?.(target.checked));
byId("position").addEventListener("change", ({ target }) => player?.seek(Number(target.value)).catch(showError));
for (const canvas of [byId("before"), byId("after")]) {
  canvas.addEventListener("click", (event) => {
    const { left, width } = canvas.getBoundingClientRect();
    player?.seek((event.clientX - left) / width).catch(showError);
  });
}
acceptFiles({ drop: byId("drop"), choose: byId("choose"), input: byId("file"), take });
byId("model").addEventListener("change", ({ target }) => {
  state.set("model", target.value);
  say(`${target.value} is used for the next file or recording.`);
});

async function start() {
  const names = (await site()).models.filter(({ task }) => task === "denoiser").map(({ name }) => name);
  byId("model").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  byId("model").value = names.includes(state.get("model")) ? state.get("model") : (names[0] ?? "");
}

start().catch(showError);
