// A deployment, live.

import { answer, byId, put, repeat } from "./common.js";

let shown = "";

repeat(async () => {
  const fault = byId("fault");
  try {
    const { html, words } = await answer("/api/deployment");
    fault.hidden = true;
    if (html !== shown) put(byId("answer"), html);
    shown = html;
    if (byId("news").textContent !== words) byId("news").textContent = words;
  } catch (error) {
    fault.textContent = error.message;
    fault.hidden = false;
  }
  byId("answer").setAttribute("aria-busy", "false");
  return 2000;
});
