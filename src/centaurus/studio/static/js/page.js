// Shared by all pages: the theme button, the state in the URL, messages, and the models.

const errorBox = document.getElementById("error");
const statusBox = document.getElementById("status");

export const byId = (id) => document.getElementById(id);

// Creates an element with attributes and children; strings become text nodes. "svg:" before the name: an SVG element.
export function element(name, attributes = {}, ...children) {
  const svg = name.startsWith("svg:");
  const node = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function showError(error) {
  errorBox.textContent = error ? (error.message ?? String(error)) : "";
  errorBox.hidden = !error;
}

// Show a short message, also to screen readers.
export function say(text) {
  statusBox.textContent = text;
}

// Run work when a button is clicked, which is disabled until it ends; errors are shown on the page.
export function action(button, work) {
  button.addEventListener("click", async () => {
    showError(null);
    button.disabled = true;
    try {
      await work();
    } catch (error) {
      showError(error);
    } finally {
      button.disabled = false;
    }
  });
}

// State in the URL: { name: { default, read } }, where read returns a valid value or undefined.
export class State {
  constructor(schema) {
    this.schema = schema;
    this.values = {};
    const query = new URLSearchParams(location.search);
    for (const [name, { default: fallback, read }] of Object.entries(schema)) {
      this.values[name] = (query.has(name) ? read(query.get(name)) : undefined) ?? fallback;
    }
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    this.values[name] = value;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => history.replaceState(null, "", this.address()), 150);
  }

  address() {
    const query = new URLSearchParams();
    for (const [name, { default: fallback }] of Object.entries(this.schema)) {
      if (this.values[name] !== fallback) query.set(name, this.values[name]);
    }
    const text = query.toString();
    return location.pathname + (text ? `?${text}` : "");
  }
}

export const within = (least, most) => (text) => {
  const number = Number(text);
  return text.trim() !== "" && Number.isFinite(number) ? Math.min(most, Math.max(least, number)) : undefined;
};
export const whole = (least, most) => (text) => {
  const number = within(least, most)(text);
  return number === undefined ? undefined : Math.round(number);
};
export const oneOf = (values) => (text) => (values.includes(text) ? text : undefined);
export const upTo = (length) => (text) => text.slice(0, length);

// Bind a slider to a value of the state, and show the value as text.
export function slider(state, id, words, changed = () => {}) {
  const input = byId(id);
  const output = byId(`${id}-value`);
  const show = () => {
    output.textContent = words(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  const move = (value) => {
    input.value = value;
    show();
  };
  move(state.get(id));
  input.addEventListener("input", () => {
    state.set(id, Number(input.value));
    show();
    changed(Number(input.value));
  });
  return move;
}

// Trusted types: the only script URL from which a worker may be started.
const policy = globalThis.trustedTypes?.createPolicy("centaurus", {
  createScriptURL: (address) => {
    if (address !== workerAddress) throw new TypeError(`not a worker of this site: ${address}`);
    return address;
  },
});
const workerAddress = new URL("worker.js", import.meta.url).href;

export function startWorker() {
  return new Worker(policy ? policy.createScriptURL(workerAddress) : workerAddress, { type: "module" });
}

let models = null;

// models.json: whether a server answers (live), the available models, and the equations of the plan explorer.
export async function site() {
  models ??= fetchJson("models.json");
  return models;
}

export async function fetchJson(address) {
  const response = await fetch(address);
  const data = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(data.error ?? `${address} could not be loaded (${response.status}).`);
  return data;
}

const modules = new Map();

// The bytes of a model's module, loaded once.
export async function loadModule(name) {
  if (!modules.has(name)) {
    const load = fetchBytes(`models/${encodeURIComponent(name)}.wasm`);
    modules.set(name, load);
    load.catch(() => modules.delete(name));
  }
  return modules.get(name);
}

async function fetchBytes(address) {
  let response;
  try {
    response = await fetch(address);
  } catch {
    throw new Error("The model could not be loaded: check that the server is running and the network is connected.");
  }
  if (!response.ok) throw new Error(`The model ${address} could not be loaded (${response.status}).`);
  return new Uint8Array(await response.arrayBuffer());
}

// Fill a table below its caption; columns in `codes` are text, not numbers.
export function table(id, columns, rows, codes = []) {
  const caption = byId(id).querySelector("caption");
  const head = element("tr", {}, ...columns.map((name, k) => element("th", { scope: "col", class: codes.includes(k) ? "text" : null }, name)));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((value, k) => element("td", { class: codes.includes(k) ? `text${value.length > 40 ? " long" : ""}` : null }, value))),
  );
  byId(id).replaceChildren(caption, element("thead", {}, head), element("tbody", {}, ...body));
}

export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export function clock(seconds) {
  const whole = Math.floor(seconds);
  const parts = [Math.floor(whole / 60) % 60, whole % 60].map((n) => String(n).padStart(2, "0"));
  return (whole >= 3600 ? [Math.floor(whole / 3600), ...parts] : parts).join(":");
}

// Numbers with a metric prefix: 1.2 k, 3.4 M.
export function short(number, unit = "") {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= size) return `${(number / size).toPrecision(3)} ${letter}${unit}`;
  }
  return `${Number(number.toPrecision(3))}${unit ? ` ${unit}` : ""}`;
}

export function duration(seconds) {
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${(seconds * 1e6).toPrecision(3)} µs`;
}

function theme() {
  const set = document.documentElement.dataset.theme;
  return set ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

byId("theme").addEventListener("click", () => {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch {
    // Storage is denied: the choice lasts for this page.
  }
});

byId("share").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link to this page with its settings was copied.");
  } catch {
    say(`The link to this page with its settings: ${location.href}`);
  }
});
