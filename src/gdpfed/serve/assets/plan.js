// The planner: controls -> a state (a source and what was stated) -> an answer. A newer state ends the older question.

import { byId, lines, put, send } from "./common.js";
import { Histogram } from "./histogram.js";

// In the order of the server; the names of links, and of the settings that they are.
const KEYS = {
  method: "method", rounds: "num_rounds", participation: "participation", delta: "delta", groups: "groups",
  against: "against", asks: "asks", trainings: "trainings", "ask-cost": "ask_cost", "clip-norm": "clip_norm",
  accountant: "accountant",
};
const PRESETS = [...byId("source").querySelectorAll("optgroup option")].map((option) => option.value);
const DEFAULT = PRESETS[0];

let state = read(location.search);
let known = null;
let asking = null;
let timer = null;

function read(search) {
  const stated = new Map(new URLSearchParams(search));
  const source = stated.get("source") ?? DEFAULT;
  stated.delete("source");
  return { source, stated };
}

function query({ source, stated }) {
  const pairs = Object.keys(KEYS).filter((key) => stated.has(key)).map((key) => [key, stated.get(key)]);
  return new URLSearchParams([["source", source], ...pairs]).toString();
}

// State -> answer

function change(edit, { pause = 160 } = {}) {
  state = { source: state.source, stated: new Map(state.stated) };
  edit(state);
  history.replaceState(null, "", `/plan?${query(state)}`);
  clearTimeout(timer);
  timer = setTimeout(plan, pause);
}

const stateOf = (key, value) => change(({ stated }) => (value == null ? stated.delete(key) : stated.set(key, value)));

// From the source's own settings to budgets of one's own: what was seen stays.
function own(text) {
  change((next) => {
    if (next.source === text) return;
    if (known && PRESETS.includes(next.source)) {
      for (const key of ["method", "rounds", "participation", "clip-norm"]) {
        if (!next.stated.has(key)) next.stated.set(key, String(known.settings[KEYS[key]]));
      }
    }
    // Borders belong to the budgets that they were drawn for.
    if (/[.,]/.test(next.stated.get("groups") ?? "")) next.stated.delete("groups");
    next.source = text;
  });
}

function busy(name, words, share) {
  const prefix = name === "plan" ? "" : `${name}-`;
  const bar = byId(`${prefix}progress`);
  byId(`${prefix}status`).textContent = words;
  bar.hidden = !words || share === null;
  if (share === undefined) bar.removeAttribute("value");
  else if (share !== null) bar.value = share;
}

function fault(words) {
  byId("fault").textContent = words;
  byId("fault").hidden = !words;
}

async function asked(name, signal, heard) {
  const started = performance.now();
  const seconds = () => `${((performance.now() - started) / 1000).toFixed(0)} s`;
  let words = "";
  await lines(`/api/${name}?${query(state)}`, (event) => {
    if (event.words) {
      words = event.words;
      busy(name, words, event.total ? event.done / event.total : undefined);
    } else if (event.working || event.waiting) {
      const what = words || (event.waiting ? "waiting for a free processor" : "calibrating the noise");
      busy(name, `${what}, ${seconds()}`, undefined);
    } else {
      heard(event);
    }
  }, { signal });
}

async function plan() {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const box = byId("answer");
  box.setAttribute("aria-busy", "true");
  busy("compare", "", null);
  busy("frontier", "", null);
  const started = performance.now();
  try {
    await asked("plan", signal, (event) => {
      if (event.settings) show(event);
      if (event.plan) {
        found(event);
        busy("plan", "Planned.", null);
        byId("status").dataset.milliseconds = Math.round(performance.now() - started);
      }
    });
    fault("");
    box.setAttribute("aria-busy", "false");
  } catch (error) {
    if (error.name === "AbortError") return;
    fault(error.message);
    busy("plan", "", null);
    for (const part of ["answer", "compare", "frontier"]) byId(part).replaceChildren();
    box.setAttribute("aria-busy", "false");
    return;
  }
  await part("compare", signal);
  if (state.stated.get("against") === "server") await frontier(signal);
  else byId("frontier").replaceChildren();
}

async function part(name, signal) {
  byId(name).setAttribute("aria-busy", "true");
  try {
    await asked(name, signal, (event) => { if (event.html) put(byId(name), event.html); });
    busy(name, "", null);
  } catch (error) {
    if (error.name === "AbortError") return;
    busy(name, error.message, null);
    byId(name).replaceChildren();
  }
  byId(name).setAttribute("aria-busy", "false");
}

const frontier = (signal) => part("frontier", signal);

// Answer -> controls

const figure = (value) => (value == null ? "" : Array.isArray(value) ? value.join(",") : String(value));

function show(event) {
  known = event;
  byId("command").textContent = event.command;
  byId("link").textContent = `${location.origin}/plan?${event.query}`;
  const isOwn = !PRESETS.includes(state.source);
  byId("source").value = isOwn ? "own" : state.source;
  const budgets = byId("budgets");
  if (document.activeElement !== budgets) {
    const isText = event.bars.every(([low, high]) => low === high);
    budgets.value = state.source.includes("@")
      ? state.source
      : isText ? event.bars.map(([low, , count]) => `${count}@${low}`).join(",") : "";
  }
  histogram.show({ bars: event.bars, isEdited: event.is_edited, borders: histogram.lows ?? [] });
  byId("histogram-help").textContent = event.is_edited
    ? "Drag a bar for more or fewer clients, a border to regroup them; or use the arrow keys."
    : "Drag a border to regroup clients, or use the arrow keys.";
  for (const [key, name] of Object.entries(KEYS)) set(key, event.settings[name]);
}

function set(key, value) {
  if (key === "against") {
    document.querySelector(`[name=against][value=${value}]`).checked = true;
    byId("asking").hidden = value !== "server";
    return;
  }
  const input = byId(key);
  if (document.activeElement !== input) input.value = figure(value);
  const slider = byId(`${key}-slider`);
  if (slider && value != null && document.activeElement !== slider) slider.value = position(key, value);
  const auto = byId(`${key}-auto`);
  if (auto) auto.checked = !state.stated.has(key);
}

function found({ plan, html, found }) {
  put(byId("answer"), html);
  histogram.lows = plan.private && plan.groups.length > 1 ? found.borders : [];
  histogram.show({ bars: known.bars, isEdited: known.is_edited, borders: histogram.lows });
  // What was found for a setting that nobody stated.
  for (const key of ["delta", "asks", "trainings"]) {
    if (!state.stated.has(key) && found[key] != null) {
      const input = byId(key);
      if (document.activeElement !== input) input.value = Number(found[key].toPrecision(4));
      byId(`${key}-slider`).value = position(key, found[key]);
    }
  }
}

// Controls -> state

const control = (key) => byId(key).closest(".control");
const range = (key) => [Number(control(key).dataset.low), Number(control(key).dataset.high)].map(Math.log);

function position(key, value) {
  const [low, high] = range(key);
  return Math.round((1000 * (Math.log(Math.max(value, 1e-300)) - low)) / (high - low));
}

function valueAt(key, place) {
  const [low, high] = range(key);
  const value = Math.exp(low + ((high - low) * place) / 1000);
  return control(key).dataset.whole === undefined ? Number(value.toPrecision(2)) : Math.round(Number(value.toPrecision(2)));
}

for (const slider of document.querySelectorAll("input[type=range]")) {
  const key = slider.id.replace("-slider", "");
  slider.addEventListener("input", () => {
    const value = valueAt(key, Number(slider.value));
    byId(key).value = value;
    slider.setAttribute("aria-valuetext", value);
    stateOf(key, String(value));
  });
}
for (const key of Object.keys(KEYS)) {
  if (key === "against") continue;
  byId(key).addEventListener("change", () => stateOf(key, byId(key).value.trim() || null));
}
for (const box of document.querySelectorAll("[data-auto]")) {
  box.addEventListener("change", () => stateOf(box.dataset.auto, box.checked ? null : byId(box.dataset.auto).value));
}
for (const radio of document.querySelectorAll("[name=against]")) {
  radio.addEventListener("change", () => change(({ stated }) => {
    for (const key of ["asks", "trainings"]) stated.delete(key);
    if (radio.value === "models") stated.delete("against");
    else stated.set("against", radio.value);
    byId("asking").hidden = radio.value !== "server";
  }));
}
byId("source").addEventListener("change", ({ target }) => {
  if (target.value === "own") {
    byId("budgets").focus();
    byId("budgets").select();
    return;
  }
  state = { source: target.value, stated: new Map() };
  history.pushState(null, "", `/plan?${query(state)}`);
  plan();
});
byId("budgets").addEventListener("change", ({ target }) => { if (target.value.trim()) own(target.value.replace(/\s+/g, "")); });
byId("auto-groups").addEventListener("click", () => stateOf("groups", null));
byId("add-border").addEventListener("click", () => {
  if (!histogram.add()) byId("status").textContent = "Every budget is a group already.";
});
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("frontier-button").addEventListener("click", () => { if (asking) frontier(asking.signal); });
byId("frontier").addEventListener("click", ({ target }) => {
  if (target.id !== "take-cheapest") return;
  const radio = document.querySelector("[name=against][value=server]");
  radio.checked = true;
  radio.dispatchEvent(new Event("change"));
  scrollTo({ top: 0 });
  byId("main").focus();
});
byId("paste").addEventListener("click", async () => {
  const status = byId("paste-status");
  status.textContent = "";
  try {
    const { source, delta, clients } = await send("/api/budgets", { text: byId("pasted").value });
    status.textContent = `${clients.toLocaleString("en")} clients. Names are left out: a plan needs none.`;
    own(source);
    stateOf("delta", String(delta));
  } catch (error) {
    status.textContent = error.message;
  }
});
byId("save").addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = byId("saved");
  said.textContent = "Saving.";
  try {
    const content = { query: Object.fromEntries(new URLSearchParams(query(state))), name: byId("name").value.trim() };
    const { saved, command } = await send("/api/save", { ...content, replace: byId("replace").checked });
    said.textContent = `Saved to ${saved}. Check it with: ${command}`;
    byId("replace-label").hidden = true;
    byId("replace").checked = false;
  } catch (error) {
    said.textContent = error.message;
    byId("replace-label").hidden = !error.exists;
  }
});
addEventListener("popstate", () => {
  state = read(location.search);
  plan();
});

const counted = (bars) => bars.map(([low, , count]) => `${count}@${low}`).join(",");
const histogram = new Histogram(byId("histogram"), {
  count: (index, clients) => {
    const bars = known.bars.map(([low, high, count], at) => [low, high, at === index ? clients : count]);
    known.bars = bars;
    histogram.show({ bars, isEdited: true, borders: histogram.lows });
    own(counted(bars));
  },
  remove: (index) => own(counted(known.bars.filter((_, at) => at !== index))),
  borders: (edges) => {
    // A single number would be one of groups, not of epsilon.
    const groups = edges.length === 1 ? "1" : edges.join(",");
    byId("groups").value = groups;
    stateOf("groups", groups);
  },
});
plan();
