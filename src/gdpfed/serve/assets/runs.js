// The runs below the folder, live: rows are updated in place, so that focus and selection stay.

import { answer, byId, duration, make, put, repeat } from "./common.js";

const COLUMNS = ["", "run", "method", "state", "round", "accuracy", "spent of promised ε, by group", "cohort", "clients a second", "time left"];

export class RunTable {
  constructor(element, { selected, chosen = () => {} }) {
    this.element = element;
    this.selected = selected;
    this.chosen = chosen;
    this.rows = new Map();
  }

  show(runs) {
    if (!this.body) {
      const names = this.selected ? COLUMNS : COLUMNS.slice(1);
      const left = new Set(["run", "method", "state"]);
      const head = make("tr", {}, ...names.map((name) => (name
        ? make("th", { scope: "col", class: left.has(name) && "left" }, name)
        : make("td", {}, make("span", { class: "visually-hidden" }, "selected")))));
      this.body = make("tbody");
      const table = make("table", { class: "runs", "aria-label": "Runs" }, make("thead", {}, head), this.body);
      this.element.replaceChildren(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Runs" }, table));
    }
    const names = new Set(runs.map((run) => run.run));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.remove();
      this.rows.delete(name);
    }
    runs.forEach((run, at) => {
      let row = this.rows.get(run.run);
      // One that can be read no longer, or again, has other cells.
      if (row && row.classList.contains("faulty") !== Boolean(run.fault)) {
        row.remove();
        row = null;
      }
      if (!row) {
        row = this.made(run);
        this.rows.set(run.run, row);
      }
      if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null);
      this.fill(row, run);
    });
  }

  made(run) {
    const row = make("tr", {});
    row.classList.toggle("faulty", Boolean(run.fault));
    if (this.selected && run.fault) {
      row.append(make("td"));
    } else if (this.selected) {
      const box = make("input", { type: "checkbox", "aria-label": `Select ${run.run}` });
      box.checked = this.selected.has(run.run);
      box.addEventListener("change", () => {
        if (box.checked) this.selected.add(run.run);
        else this.selected.delete(run.run);
        row.classList.toggle("selected", box.checked);
        this.chosen();
      });
      row.classList.toggle("selected", box.checked);
      row.append(make("td", {}, box));
    }
    row.append(make("th", { scope: "row" }));
    for (let at = 0; at < 8; at += 1) row.append(make("td", at < 2 ? { class: "left" } : {}));
    return row;
  }

  fill(row, run) {
    const cells = [...row.children].slice(this.selected ? 1 : 0);
    const set = (at, text) => { if (cells[at].textContent !== text) cells[at].textContent = text; };
    const check = { checking: "epsilons are being recomputed", verified: "" }[run.check];
    const problem = run.fault ?? check ?? run.check;
    const facts = run.fault ? problem : [run.title, `seed ${run.seed}`, check, run.public_data && `rests on public data: ${run.public_data}`].filter(Boolean).join(", ");
    const heading = `${run.run}\n${facts}\n${check === undefined ? problem : ""}`;
    if (cells[0].dataset.heading !== heading) {
      cells[0].dataset.heading = heading;
      cells[0].replaceChildren(run.run, make("small", { class: run.fault && "alarm" }, facts));
      if (!run.fault && check === undefined) cells[0].append(make("small", { class: "alarm" }, problem ?? ""));
    }
    if (run.fault) {
      cells[2].replaceChildren(make("span", { class: "state unreadable" }, "cannot be read"));
      return;
    }
    set(1, run.method);
    const words = { running: "running", finished: "finished", stopped: "not running" }[run.state];
    if (cells[2].textContent !== words) cells[2].replaceChildren(make("span", { class: `state ${run.state}` }, words));
    set(3, `${run.round} of ${run.rounds}`);
    set(4, run.accuracy == null ? "" : `${run.accuracy.toFixed(2)} %`);
    const spends = JSON.stringify(run.groups);
    if (cells[5].dataset.spends !== spends) {
      cells[5].dataset.spends = spends;
      cells[5].replaceChildren(make("div", { class: "spends" }, ...run.groups.map((group) => {
        const bar = make("i");
        bar.style.setProperty("--share", Math.min(1, group.share ?? 0));
        return make("span", { title: group.name },
          group.promised === "none" ? "no promise" : `${group.spent ?? "0"} of ${group.promised}`,
          ...(group.promised === "none" ? [] : [make("span", { class: "meter", "aria-hidden": "true" }, bar)]));
      })));
    }
    set(6, run.groups.map((group) => group.cohort ?? "").filter((size) => size !== "").join(" · "));
    set(7, run.clients_per_second == null ? "" : run.clients_per_second.toFixed(1));
    set(8, run.state === "running" ? duration(run.seconds_left) : "");
  }
}

// Asks for the list again and again; `under` leaves out runs elsewhere.
export function watch(table, { under = "", heard = () => {} } = {}) {
  let version = "";
  return repeat(async () => {
    const fault = byId("fault");
    try {
      const found = await answer(`/api/runs?version=${version}`);
      if (fault) fault.hidden = true;
      if (!found.runs) return 2000;
      version = found.version;
      const runs = found.runs.filter((run) => !under || run.run.startsWith(`${under}/`));
      byId("no-runs").hidden = runs.length > 0;
      if (runs.length) table.show(runs);
      heard(runs);
    } catch (error) {
      if (fault) {
        fault.textContent = error.message;
        fault.hidden = false;
      }
      return 5000;
    }
    return 2000;
  });
}

if (byId("curves-section")) {
  const selected = new Set(new URLSearchParams(location.search).getAll("run"));
  let shown = "";
  let told = 0;
  const chosen = () => new URLSearchParams([...selected].map((name) => ["run", name])).toString();

  const curves = async () => {
    byId("curves-section").hidden = !selected.size;
    history.replaceState(null, "", selected.size ? `/runs?${chosen()}` : "/runs");
    byId("report").href = `/report?${chosen()}`;
    if (!selected.size) return;
    const box = byId("curves");
    try {
      const wanted = chosen();
      const { html, version } = await answer(`/api/curves?${wanted}`);
      if (wanted !== chosen() || `${wanted} ${version}` === shown) return;
      // Whoever walks along a curve is not thrown out of it.
      if (box.contains(document.activeElement) && shown.startsWith(`${wanted} `)) return;
      shown = `${wanted} ${version}`;
      byId("curves-status").textContent = "";
      put(box, html);
    } catch (error) {
      shown = "";
      byId("curves-status").textContent = error.message;
      box.replaceChildren();
    }
  };

  const table = new RunTable(byId("runs"), { selected, chosen: curves });
  watch(table, {
    heard: (runs) => {
      const running = runs.filter((run) => run.state === "running");
      if (running.length && Date.now() - told > 15000) {
        told = Date.now();
        byId("news").textContent = running.map((run) => `${run.run}: round ${run.round} of ${run.rounds}`).join("; ");
      }
      curves();
    },
  });
}
