// The front page: the presets' plans, made while one looks, and the runs that are there.

import { answer, byId } from "./common.js";
import { RunTable, watch } from "./runs.js";

const runs = byId("runs");
watch(new RunTable(runs, { selected: null }), { under: runs.dataset.under });

for (const facts of document.querySelectorAll(".plan-facts")) {
  facts.textContent = "planning";
  try {
    const { plan } = await answer(`/api/plan?source=${encodeURIComponent(facts.dataset.source)}`);
    const groups = plan.groups.length === 1 ? "1 group" : `${plan.groups.length} groups`;
    facts.textContent = `${plan.method}: ${groups}, signal-to-noise ${plan.signal_to_noise.toFixed(2)} of a round`;
  } catch (error) {
    facts.textContent = error.message;
  }
}
