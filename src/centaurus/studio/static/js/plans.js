// The plan explorer: the tensor network, the plan and a map of best plans for an equation and its sizes.

import { action, byId, duration, element, fetchJson, say, short, showError, site, State, table, upTo } from "./page.js";

// Smallest and largest power of two of a size, by index and for the others.
const RANGES = { b: [0, 8], t: [6, 20] };
const RANGE = [0, 10];
// Sizes of the map's rows and columns.
const MAPPED = { b: [1, 2, 4, 8, 16, 32, 64], t: [256, 1024, 4096, 16384, 65536, 262144] };
const MAPPED_OTHER = [4, 8, 16, 32, 64, 128, 256];
const MEANING = { b: "batch", t: "length", i: "H, input channels", j: "H′, output channels", n: "N, states", m: "M, sub-states", g: "groups" };
const ORDERS = {
  natural: "project the input, convolve, project the output",
  "full-kernel": "contract everything but the signal first, then one convolution",
  frequency: "contract in frequency, between the transforms",
};
const WAIT = 200; // ms from the last change to a query

const state = new State({
  equation: { default: "bottleneck", read: upTo(120) },
  sizes: { default: "", read: (text) => (/^([a-z]\d{1,7}(\.|$)){1,12}$/.test(text) ? text : undefined) },
  x: { default: "i", read: (text) => (/^[a-z]$/.test(text) ? text : undefined) },
  y: { default: "n", read: (text) => (/^[a-z]$/.test(text) ? text : undefined) },
});
const sizes = new Map(state.get("sizes").split(".").filter(Boolean).map((item) => [item[0], Number(item.slice(1))]));
let planner = null;
let timer = null;
let asked = 0;

// Plans from the server, for any size.
class Server {
  constructor({ equations, defaults }) {
    this.equations = equations;
    this.defaults = defaults;
    this.note = "Estimates for this machine, or for a default CPU if it is not calibrated (centaurus calibrate).";
  }

  choices(index) {
    const [least, most] = RANGES[index] ?? RANGE;
    return Array.from({ length: most - least + 1 }, (_, k) => 2 ** (least + k));
  }

  mapped(index) {
    return MAPPED[index] ?? MAPPED_OTHER;
  }

  plan(equation, chosen) {
    return fetchJson(`api/plan?${new URLSearchParams({ equation, ...Object.fromEntries(chosen) })}`);
  }

  async row(equation, chosen, across, values) {
    const query = { equation, ...Object.fromEntries(chosen), across, values: values.join(",") };
    return (await fetchJson(`api/row?${new URLSearchParams(query)}`)).cells;
  }
}

// Precomputed plans over a grid of sizes, from a file of the site.
class Grid {
  constructor(data) {
    Object.assign(this, data, { fixed: true });
    this.note = `Precomputed for a grid of sizes and ${data.device}; i and j are equal. For any equation and size, run “centaurus studio”.`;
  }

  choices(index) {
    return this.axes[index] ?? (index === "j" ? this.axes.i : [this.defaults[index]]);
  }

  mapped(index) {
    return this.choices(index);
  }

  async plan(equation, chosen) {
    const at = Object.keys(this.axes).map((index) => chosen.get(index) ?? this.axes[index][0]);
    const entry = this.plans[[equation, ...at].join("/")];
    if (!entry) throw new Error(`${equation} has no plan in the grid of this site.`);
    const named = (plan) => ({ ...plan, summary: this.summaries[plan.summary] });
    const operands = read(this.equations[equation]);
    return {
      ...operands,
      equation: this.equations[equation],
      sizes: Object.fromEntries(chosen),
      device: this.device,
      plan: named(entry.plan),
      runners_up: entry.runners_up.map(named),
      named: Object.fromEntries(Object.entries(entry.named).map(([name, plan]) => [name, named(plan)])),
      rule: entry.rule,
    };
  }

  async row(equation, chosen, across, values) {
    return Promise.all(
      values.map(async (value) => {
        const moved = new Map(chosen).set(across, value);
        if (across === "i" || across === "j") moved.set("i", value).set("j", value);
        const { plan, named, rule } = await this.plan(equation, moved);
        return { plan: plan.summary, seconds: plan.seconds, paper: named.paper.seconds / plan.seconds, rule };
      }),
    );
  }
}

// The operands of an equation "u_bit B_ni K_nt -> y_bnt".
function read(equation) {
  const [left, right = ""] = equation.split("->").map((side) => side.trim());
  const operands = left.split(/\s+/).map((term) => ({ name: term.split("_")[0], indices: letters(term.split("_")[1]) }));
  return { operands, output: letters(right.split("_")[1]) };
}

// The indices of a term that may be incomplete.
const letters = (text = "") => [...text].filter((letter) => /[a-z]/i.test(letter)).join("");

const text = () => planner.equations[state.get("equation")] ?? state.get("equation");

function indices() {
  const used = new Set(read(text()).operands.flatMap(({ indices }) => [...indices]));
  return [..."btgijnm", ...[...used].sort()].filter((index, at, all) => used.has(index) && all.indexOf(index) === at);
}

function chosenSizes() {
  return new Map(indices().map((index) => [index, sizes.get(index) ?? planner.defaults[index] ?? 16]));
}

function showSizes() {
  const fields = indices().map((index) => {
    const choices = planner.choices(index);
    const size = sizes.get(index) ?? planner.defaults[index] ?? 16;
    const at = choices.reduce((best, value, k) => (Math.abs(value - size) < Math.abs(choices[best] - size) ? k : best), 0);
    sizes.set(index, planner.fixed ? choices[at] : size);
    const id = `size-${index}`;
    const output = element("output", { for: id }, String(sizes.get(index)));
    const input = element("input", {
      id, type: "range", min: 0, max: choices.length - 1, step: 1, value: at, "aria-valuetext": String(sizes.get(index)),
    });
    input.disabled = choices.length === 1;
    input.addEventListener("input", () => {
      const value = choices[Number(input.value)];
      for (const moved of planner.fixed && "ij".includes(index) ? ["i", "j"] : [index]) sizes.set(moved, value);
      output.textContent = String(value);
      input.setAttribute("aria-valuetext", String(value));
      changed();
    });
    const label = element("label", { for: id }, element("code", {}, index), ` ${MEANING[index] ?? ""}`);
    return element("div", { class: "field" }, label, output, input);
  });
  byId("sizes").replaceChildren(...fields);
  for (const [id, fallback] of [["x", 0], ["y", 1]]) {
    const options = indices().map((index) => element("option", { value: index }, `${index} ${MEANING[index] ?? ""}`));
    byId(id).replaceChildren(...options);
    const known = indices();
    byId(id).value = known.includes(state.get(id)) ? state.get(id) : known[Math.min(fallback, known.length - 1)];
  }
}

function changed() {
  state.set("sizes", [...chosenSizes()].map(([index, size]) => `${index}${size}`).join("."));
  clearTimeout(timer);
  timer = setTimeout(ask, WAIT);
}

async function ask() {
  const turn = ++asked;
  try {
    const answer = await planner.plan(state.get("equation"), chosenSizes());
    if (turn !== asked) return; // superseded by a later query
    showError(null);
    showNetwork(answer);
    showPlan(answer);
  } catch (error) {
    if (turn === asked) showError(error);
  }
}

// Operands at the top, indices in the middle, the output at the bottom, with an edge from an index to every tensor that has it.
function showNetwork({ operands, output, sizes: known }) {
  const all = [...new Set(operands.flatMap(({ indices: i }) => [...i]))];
  const width = 640;
  const place = (k, count) => ((k + 0.5) / count) * width;
  const at = new Map(all.map((index, k) => [index, place(k, all.length)]));
  const parts = [];
  const edge = (x1, y1, x2, y2) => {
    const middle = (y1 + y2) / 2;
    parts.push(element("svg:path", { class: "edge", d: `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}` }));
  };
  operands.forEach(({ indices: i }, k) => [...i].forEach((index) => edge(place(k, operands.length), 62, at.get(index), 118)));
  [...output].forEach((index) => edge(at.get(index), 150, width / 2, 208));
  operands.forEach(({ name, indices: i }, k) => {
    const x = place(k, operands.length);
    parts.push(element("svg:circle", { class: name === "u" ? "node signal" : "node", cx: x, cy: 38, r: 24 }));
    parts.push(element("svg:text", { x, y: 43, "text-anchor": "middle" }, `${name}`));
    parts.push(element("svg:text", { class: "soft", x: x + 28, y: 24 }, i));
  });
  for (const [index, x] of at) {
    parts.push(element("svg:rect", { class: "halo", x: x - 40, y: 118, width: 80, height: 32, rx: 8 }));
    parts.push(element("svg:text", { x, y: 132, "text-anchor": "middle" }, index));
    parts.push(element("svg:text", { class: "soft", x, y: 147, "text-anchor": "middle" }, String(known[index])));
  }
  parts.push(element("svg:circle", { class: "node signal", cx: width / 2, cy: 232, r: 24 }));
  parts.push(element("svg:text", { x: width / 2, y: 237, "text-anchor": "middle" }, "y"));
  parts.push(element("svg:text", { class: "soft", x: width / 2 + 30, y: 237 }, output));
  const words = operands.map(({ name, indices: i }) => `${name} over ${[...i].join(", ")}`).join("; ");
  const picture = { viewBox: `0 0 ${width} 262`, role: "img", "aria-label": `Tensor network: ${words}; output over ${[...output].join(", ")}` };
  byId("graph").replaceChildren(element("svg:svg", picture, ...parts));
}

function showPlan({ plan, runners_up: others, named, rule, device }) {
  byId("summary").textContent =
    `${duration(plan.seconds)} forward and backward (${duration(plan.forward_seconds)} forward), ` +
    `${short(plan.flops, "FLOP")} forward, ${short(plan.peak_bytes, "B")} at most. ${device}.`;
  const names = { contract: "contract", generate: "make kernel", rfft: "FFT", irfft: "inverse FFT", multiply: "multiply", direct: "convolve", chunked: "convolve in chunks", scan: "convolve by recurrence", dft: "convolve by DFT", fft: "convolve by FFT" };
  const rows = plan.steps.map((step, k) => [
    `${k + 1}. ${names[step.kind] ?? step.kind}${step.chunk ? ` of ${step.chunk}` : ""}`,
    step.equation, step.domain === "none" ? "–" : step.domain, short(step.flops), short(step.kept_bytes + step.transient_bytes, "B"), duration(step.forward_seconds), duration(step.backward_seconds),
  ]);
  table("steps", ["Step", "Einsum", "Domain", "FLOP", "Memory", "Forward", "Backward"], rows, [1]);
  const beside = [
    ["Best", plan],
    ...others.map((other, k) => [`Runner-up ${k + 1}`, other]),
    ["Paper's rule", named.paper],
    ["Natural order", named.natural],
    ["Full kernel first", named["full-kernel"]],
  ];
  const totals = beside.map(([name, other]) => [
    name, `${(other.seconds / plan.seconds).toFixed(2)} ×`, duration(other.seconds), short(other.flops), short(other.peak_bytes, "B"), other.summary,
  ]);
  table("others", ["Plan", "Time", "", "FLOP", "Memory", "Steps"], totals, [5]);
  byId("others").querySelector("tbody tr").className = "best";
  const cost = named.paper.seconds / plan.seconds;
  byId("rule").textContent = `The paper's rule for these sizes: ${ORDERS[rule]}. ` + (cost < 1.005 ? "The planner's choice is the same or equally fast." : `That takes ${cost.toFixed(2)} times as long as the best plan.`);
}

async function drawMap() {
  const [x, y] = [byId("x").value, byId("y").value];
  if (x === y) throw new Error("The map needs two different sizes: choose another one for “Up”.");
  const equation = state.get("equation");
  const [across, up] = [planner.mapped(x), [...planner.mapped(y)].reverse()];
  const plans = new Map();
  const cells = [];
  const head = element("tr", {}, element("th", { scope: "col" }, `${y} \\ ${x}`), ...across.map((value) => element("th", { scope: "col" }, String(value))));
  const body = element("tbody");
  byId("map").replaceChildren(element("table", {}, element("caption", { class: "hidden" }, `Best plans over ${x} and ${y}`), element("thead", {}, head), body));
  for (const [row, value] of up.entries()) {
    const moved = chosenSizes().set(y, value);
    if (planner.fixed && (y === "i" || y === "j")) moved.set("i", value).set("j", value);
    const line = await planner.row(equation, moved, x, across);
    for (const { plan } of line) if (!plans.has(plan)) plans.set(plan, plans.size);
    cells.push(line);
    body.append(element("tr", {}, element("th", { scope: "row" }, String(value)), ...line.map((cell, k) => mapCell(cell, plans, line[k - 1]))));
    if (row) markBelow(body.rows[row - 1], cells[row - 1], line);
    say(`Map: ${row + 1} of ${up.length} rows.`);
  }
  showLegend(plans);
}

const letter = (number) => String.fromCharCode(65 + (number % 26));

function mapCell(cell, plans, left) {
  const number = plans.get(cell.plan);
  const classes = [`plan-${number % 8}`, left && left.rule !== cell.rule ? "switch-left" : ""].join(" ").trim();
  const title = `Plan ${letter(number)}, ${duration(cell.seconds)}; the paper's rule: ${ORDERS[cell.rule]}, ${cell.paper.toFixed(2)} times as long`;
  return element("td", { class: classes, title }, `${letter(number)} ${cell.paper.toFixed(1)}×`);
}

// A thick line where the paper's rule switches between two rows.
function markBelow(row, above, below) {
  above.forEach((cell, k) => {
    if (cell.rule !== below[k].rule) row.cells[k + 1].classList.add("switch-below");
  });
}

function showLegend(plans) {
  const items = [...plans].map(([summary, number]) =>
    element("li", {}, element("span", { class: `swatch plan-${number % 8}` }, letter(number)), element("code", {}, summary)),
  );
  const note = element("li", {}, "Numbers: time of the paper's rule over that of the best plan. Thick lines: where that rule switches.");
  byId("legend").replaceChildren(...items, note);
}

async function start() {
  const { live, equations, defaults } = await site();
  planner = live ? new Server({ equations, defaults }) : new Grid(await fetchJson("plans.json"));
  byId("mode").textContent = planner.note;
  const options = Object.keys(planner.equations).map((name) => element("option", { value: name }, name));
  if (!planner.fixed) options.push(element("option", { value: "" }, "an equation of your own"));
  byId("topology").replaceChildren(...options);
  if (planner.fixed && !planner.equations[state.get("equation")]) state.values.equation = "bottleneck";
  byId("equation").readOnly = Boolean(planner.fixed);
  showEquation();
  showSizes();
  await ask();
}

function showEquation() {
  byId("topology").value = planner.equations[state.get("equation")] ? state.get("equation") : "";
  byId("equation").value = text();
}

byId("topology").addEventListener("change", ({ target }) => {
  if (!target.value) {
    byId("equation").focus();
    return;
  }
  state.set("equation", target.value);
  showEquation();
  showSizes();
  changed();
});
byId("equation").addEventListener("input", ({ target }) => {
  const known = Object.entries(planner.equations).find(([, equation]) => equation === target.value.trim());
  state.set("equation", known ? known[0] : target.value.trim());
  byId("topology").value = known ? known[0] : "";
  showSizes();
  changed();
});
for (const id of ["x", "y"]) byId(id).addEventListener("change", ({ target }) => state.set(id, target.value));
action(byId("draw"), drawMap);
start().catch(showError);
