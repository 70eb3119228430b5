// A ledger: read again when it has changed; names only when asked for.

import { byId, lines, make, put, repeat } from "./common.js";

let version = "";

repeat(async () => {
  const [status, bar, fault] = ["status", "progress", "fault"].map(byId);
  try {
    await lines(`/api/ledger?version=${encodeURIComponent(version)}`, (event) => {
      if (event.words) status.textContent = event.words;
      if (event.working || event.waiting) {
        status.textContent ||= "reading the ledger";
        bar.hidden = false;
      }
      if (event.html) {
        put(byId("answer"), event.html);
        populations();
      }
      version = event.version ?? version;
    });
    fault.hidden = true;
  } catch (error) {
    version = "";
    fault.textContent = error.message;
    fault.hidden = false;
  }
  status.textContent = "";
  bar.hidden = true;
  byId("answer").setAttribute("aria-busy", "false");
  return 5000;
});

function populations() {
  const chosen = byId("population").value;
  const names = [...document.querySelectorAll("[data-population]")].map((part) => part.dataset.population);
  byId("population").replaceChildren(...names.map((name) => make("option", { selected: name === chosen }, name)));
}

function form(id, query) {
  byId(id).addEventListener("submit", async (event) => {
    event.preventDefault();
    const status = byId(`${id}-status`);
    const started = performance.now();
    status.textContent = "computing";
    try {
      await lines(`/api/ledger/${query()}`, (found) => {
        if (found.working) status.textContent = `computing, ${((performance.now() - started) / 1000).toFixed(0)} s`;
        if (found.html) put(byId(`${id}-answer`), found.html);
      });
      status.textContent = "";
    } catch (error) {
      status.textContent = error.message;
      byId(`${id}-answer`).replaceChildren();
    }
  });
}

const given = (...names) => new URLSearchParams(names.map((name) => [name, byId(name).value.trim()]));
form("next", () => `plan?${given("population", "method", "rounds", "participation")}`);
form("clients", () => {
  const query = given("population");
  query.set("clients", byId("names").value);
  return `clients?${query}`;
});
