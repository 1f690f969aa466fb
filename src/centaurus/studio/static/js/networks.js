// The network explorer: the shape of a network, its counts, and how training changed its layers.

import { byId, element, fetchJson, short, showError, State, table, upTo, whole } from "./page.js";

const WIDTH = 720;
const HEIGHT = 292;
const WIDEST = 144; // largest width of a bar
const CHART = { width: 420, height: 280, left: 64, bottom: 44 }; // margins left of and below its axes

const state = new State({
  network: { default: "denoise-16k", read: upTo(40) },
  layer: { default: 1, read: whole(1, 99) },
});
let networks = [];
let rate = 16_000;

const current = () => networks.find(({ name }) => name === state.get("network")) ?? networks[0];

function show() {
  const network = current();
  const milliseconds = (samples) => `${Number(((1000 * samples) / rate).toPrecision(3))} ms`;
  const facts = [
    ["Parameters", short(network.parameters)],
    ["FLOPs per second", short(network.flops_per_second)],
    ["State", `${short(network.state_floats)} numbers`],
    ["Hop", `${network.hop} samples, ${milliseconds(network.hop)}`],
    ["Latency", milliseconds(network.latency)],
  ];
  byId("counts").replaceChildren(
    ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", { class: "number" }, value))),
  );
  showShape(network);
  showRows(network);
  showTrained(network);
}

// A bar for each layer: its height shows the channels (square root), the line below the frame rate (logarithm).
function showShape({ name, layers }) {
  const each = Math.min(WIDEST, WIDTH / layers.length);
  const most = Math.max(...layers.map((layer) => Math.max(layer.in, layer.out)));
  const states = Math.max(...layers.map((layer) => layer.states));
  const base = 190;
  const height = (channels) => 8 + 150 * Math.sqrt(channels / most);
  const low = Math.log2(Math.min(...layers.map((layer) => layer.rate)));
  const high = Math.log2(Math.max(...layers.map((layer) => layer.rate)));
  const level = (hertz) => 234 + 34 * (high > low ? 1 - (Math.log2(hertz) - low) / (high - low) : 0);
  const parts = layers.flatMap((layer, k) => {
    const [x, top, opacity] = [k * each, base - height(layer.out), 0.3 + 0.7 * Math.sqrt(layer.states / states)];
    const points = `${x + 2},${base} ${x + 2},${base - height(layer.in)} ${x + each - 2},${top} ${x + each - 2},${base}`;
    const words = `Layer ${k + 1}: ${layer.kind}, ${layer.in} to ${layer.out} channels, ${layer.states} states, ${layer.rate} Hz`;
    const bar = element("svg:polygon", { class: "bar-layer", points, "fill-opacity": opacity.toFixed(2) }, element("svg:title", {}, words));
    const label = each > 26 ? [element("svg:text", { class: "soft", x: x + each / 2, y: base + 15, "text-anchor": "middle" }, String(layer.out))] : [];
    return [bar, ...label];
  });
  let line = "";
  layers.forEach((layer, k) => (line += `${k ? "L" : "M"}${k * each} ${level(layer.rate)}L${(k + 1) * each} ${level(layer.rate)}`));
  parts.push(element("svg:path", { class: "after", d: line }));
  const hertz = (value) => short(value, "Hz");
  parts.push(element("svg:text", { class: "name-after", x: 2, y: level(layers[0].rate) + 16 }, hertz(layers[0].rate)));
  const slowest = layers.reduce((best, layer, k) => (layer.rate < layers[best].rate ? k : best), 0);
  if (slowest) parts.push(element("svg:text", { class: "name-after", x: slowest * each + 4, y: level(layers[slowest].rate) + 16 }, hertz(layers[slowest].rate)));
  const label = `${name}: ${layers.length} layers from ${layers[0].in} to at most ${most} channels`;
  draw("shape", parts, label, WIDTH, HEIGHT);
}

function draw(id, parts, label, width = CHART.width, height = CHART.height) {
  byId(id).replaceChildren(element("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts));
}

// A duration in milliseconds as text with its unit.
function time(ms) {
  return ms >= 1000 ? `${Number((ms / 1000).toPrecision(2))} s` : `${Number(ms.toPrecision(2))} ms`;
}

function showRows({ layers }) {
  const head = ["Layer", "Kind", "Rate", "Channels in", "Channels out", "States"];
  table("rows", head, layers.map((layer, k) => [k + 1, layer.kind, `${layer.rate} Hz`, layer.in, layer.out, layer.states]));
}

function showTrained({ trained, layers }) {
  byId("trained").hidden = !trained;
  if (!trained) return;
  const options = trained.map(({ layer }) => {
    const row = layers[layer - 1];
    return element("option", { value: layer }, `${layer}: ${row.kind}, ${row.in} → ${row.out} channels at ${row.rate} Hz`);
  });
  byId("layer").replaceChildren(...options);
  const chosen = trained.find(({ layer }) => layer === state.get("layer")) ?? trained[0];
  byId("layer").value = chosen.layer;
  showMemory(chosen);
  showModes(chosen);
  showPlane(chosen, layers[chosen.layer - 1].rate);
  const ends = (part) => time(part.t[part.db.findIndex((level) => level < -20)] ?? part.t.at(-1));
  byId("trained-text").textContent =
    `99 % of the impulse response's energy comes within ${ends(chosen.after)} after training, ` +
    `within ${ends(chosen.before)} as initialised. Solid and filled: trained; dashed and hollow: as initialised.`;
}

function axes(parts, { xTicks, yTicks, xLabel, yLabel }) {
  const { width, height, left, bottom } = CHART;
  for (const [at, name] of xTicks) {
    parts.push(element("svg:path", { class: "axis", d: `M${at} 10V${height - bottom}` }));
    parts.push(element("svg:text", { class: "soft", x: at, y: height - bottom + 16, "text-anchor": at > width - 30 ? "end" : "middle" }, name));
  }
  for (const [at, name] of yTicks) {
    parts.push(element("svg:path", { class: "axis", d: `M${left} ${at}H${width - 10}` }));
    parts.push(element("svg:text", { class: "soft", x: left - 6, y: at + 4, "text-anchor": "end" }, name));
  }
  parts.push(element("svg:text", { class: "soft", x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
  parts.push(element("svg:text", { class: "soft", x: 12, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom) / 2})` }, yLabel));
}

function showMemory({ before, after }) {
  const { width, height, left, bottom } = CHART;
  const end = Math.max(before.t.at(-1), after.t.at(-1)) || 1;
  const x = (t) => left + (t / end) * (width - left - 16);
  const y = (db) => 10 + (-db / 60) * (height - bottom - 10);
  const parts = [];
  const xTicks = [0, 0.25, 0.5, 0.75, 1].map((share) => [x(share * end), time(share * end)]);
  axes(parts, { xTicks, yTicks: [0, -20, -40, -60].map((db) => [y(db), String(db)]), xLabel: "after the impulse", yLabel: "remaining energy, dB" });
  for (const [name, { t, db }] of [["before", before], ["after", after]]) {
    const points = t.map((time, k) => `${x(time).toFixed(1)} ${y(Math.max(-60, db[k])).toFixed(1)}`);
    parts.push(element("svg:path", { class: name, d: `M${points.join("L")}` }));
  }
  draw("memory", parts, "Remaining energy of the impulse response, before and after training");
}

function showModes({ before, after }) {
  const { width, height, left, bottom } = CHART;
  const all = [...before.ms, ...after.ms].map(Math.log10);
  const [low, high] = [Math.floor(Math.min(...all)), Math.ceil(Math.max(...all))];
  const top = Math.max(1e-9, ...before.hz, ...after.hz);
  const x = (hz) => left + Math.sqrt(hz / top) * (width - left - 16); // low frequencies get more width
  const y = (ms) => height - bottom - ((Math.log10(ms) - low) / Math.max(1, high - low)) * (height - bottom - 14);
  const parts = [];
  const xTicks = [0, 0.1, 0.4, 1].map((share) => [x(share * top), short(share * top)]);
  const yTicks = Array.from({ length: high - low + 1 }, (_, k) => [y(10 ** (low + k)), time(10 ** (low + k))]);
  axes(parts, { xTicks, yTicks, xLabel: "frequency, Hz", yLabel: "time constant" });
  for (const [name, { ms, hz }] of [["dot-before", before], ["dot-after", after]]) {
    ms.forEach((time, k) => parts.push(element("svg:circle", { class: name, cx: x(hz[k]).toFixed(1), cy: y(time).toFixed(1), r: 3.4 })));
  }
  draw("modes", parts, "Modes by frequency and time constant, before and after training");
}

// The discretised poles exp(A Δ) in the upper half of the complex plane, without their conjugates.
function showPlane({ before, after }, hertz) {
  const { width, height, left, bottom } = CHART;
  const radius = (width - left - 26) / 2;
  const x = (re) => left + radius * (1 + re);
  const y = (im) => height - bottom - radius * im;
  const circle = (r) => `M${x(-r)} ${y(0)}A${radius * r} ${radius * r} 0 0 1 ${x(r)} ${y(0)}`;
  const parts = [];
  const xTicks = [-1, -0.5, 0, 0.5, 1].map((re) => [x(re), String(re)]);
  axes(parts, { xTicks, yTicks: [0, 0.5, 1].map((im) => [y(im), String(im)]), xLabel: "real part", yLabel: "imaginary part" });
  for (const r of [0.5, 1]) parts.push(element("svg:path", { class: r === 1 ? "unit" : "axis", d: circle(r) }));
  for (const [name, { ms, hz }] of [["dot-before", before], ["dot-after", after]]) {
    ms.forEach((time, k) => {
      const [r, turn] = [Math.exp(-1000 / (time * hertz)), (2 * Math.PI * hz[k]) / hertz];
      parts.push(element("svg:circle", { class: name, cx: x(r * Math.cos(turn)).toFixed(1), cy: y(r * Math.sin(turn)).toFixed(1), r: 3.4 }));
    });
  }
  draw("plane", parts, "Modes in the complex plane, before and after training");
}

async function start() {
  ({ networks, rate } = await fetchJson("networks.json"));
  const groups = networks.reduce((map, network) => map.set(network.group, [...(map.get(network.group) ?? []), network]), new Map());
  const lists = [...groups].reverse().map(([label, members]) =>
    element("optgroup", { label }, ...members.map(({ name }) => element("option", { value: name }, name))),
  );
  byId("network").replaceChildren(...lists);
  byId("network").value = current().name;
  show();
}

byId("network").addEventListener("change", ({ target }) => {
  state.set("network", target.value);
  state.set("layer", 1);
  show();
});
byId("layer").addEventListener("change", ({ target }) => {
  state.set("layer", Number(target.value));
  show();
});
start().catch(showError);
