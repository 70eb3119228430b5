// Shared by all pages: answers that come line by line, parts of the page that are replaced, texts to copy.

// Calls `heard` with each line of an answer; throws an Error in words.
export async function lines(address, heard, options = {}) {
  let response;
  try {
    response = await fetch(address, { ...options, headers: { accept: "application/json", ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("gdpfed serve does not answer: is it still running?");
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  const told = (text) => {
    if (!text.trim()) return;
    let event;
    try { event = JSON.parse(text); } catch { throw new Error(text); }
    if (event.error) throw Object.assign(new Error(event.error), event);
    heard(event);
  };
  for (;;) {
    const { done, value } = await reader.read();
    rest += value ?? "";
    // What is refused before it comes to the pages is one text.
    if (response.ok || response.headers.get("content-type")?.includes("json")) {
      const whole = rest.split("\n");
      rest = whole.pop();
      whole.forEach(told);
    }
    if (done) break;
  }
  told(rest);
}

export async function answer(address, options = {}) {
  const found = {};
  await lines(address, (event) => Object.assign(found, event), options);
  return found;
}

export function send(address, content) {
  const headers = { "content-type": "application/json" };
  return answer(address, { method: "POST", headers, body: JSON.stringify(content) });
}

// Puts a part that the server rendered, and escaped, in its place.
export function put(element, html) {
  element.innerHTML = html;
  element.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
}

export const byId = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export function duration(seconds) {
  if (seconds == null || !isFinite(seconds)) return "";
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// Calls again and again while the page is seen; the function says after how many milliseconds.
export function repeat(look) {
  let timer = null;
  const next = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    const pause = await look();
    clearTimeout(timer);
    timer = setTimeout(next, pause);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) next(); });
  next();
  return next;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const words = button.dataset.words ?? (button.dataset.words = button.textContent);
  try {
    await navigator.clipboard.writeText(byId(button.dataset.copy).textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId(button.dataset.copy));
    button.textContent = "Selected: copy it with the keyboard";
  }
  setTimeout(() => { button.textContent = words; }, 2000);
});
