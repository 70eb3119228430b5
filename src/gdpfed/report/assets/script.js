"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");

  const remembered = () => { try { return localStorage.getItem("gdpfed-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("gdpfed-theme", theme); } catch { /* not kept, then */ } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { button.textContent = isDark() ? "Light page" : "Dark page"; };
  if (remembered()) root.dataset.theme = remembered();
  button.hidden = false;
  name();
  system.addEventListener("change", name);
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    name();
  });

  // The browser's own tooltip would come late and beside ours: the title becomes the accessible name.
  const words = new WeakMap();
  const namePoints = (part) => {
    for (const point of part.querySelectorAll(".p")) {
      const title = point.querySelector("title");
      if (!title) continue;
      words.set(point, title.textContent);
      point.setAttribute("aria-label", title.textContent);
      title.remove();
    }
  };

  let shown = null;
  const hide = () => {
    if (!shown) return;
    shown.classList.remove("on");
    shown.closest(".s")?.classList.remove("on");
    shown.ownerSVGElement.classList.remove("active");
    shown = null;
    tip.hidden = true;
  };
  const middle = (point) => {
    const box = point.querySelector(".hit").getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const show = (point) => {
    if (point === shown) return;
    hide();
    shown = point;
    point.classList.add("on");
    const series = point.closest(".s");
    if (series) {
      series.classList.add("on");
      point.ownerSVGElement.classList.add("active");
    }
    tip.textContent = words.get(point);
    tip.hidden = false;
    place();
  };
  const place = () => {
    const [x, y] = middle(shown);
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(12, Math.min(x - width / 2, root.clientWidth - width - 12))}px`;
    tip.style.top = `${y - height - 16 < 8 ? y + 18 : y - height - 16}px`;
  };

  const listen = (chart) => {
    const points = [...chart.querySelectorAll(".p")];
    const nearest = (event) => {
      let best = null;
      let least = 26;
      for (const point of points) {
        const [x, y] = middle(point);
        const distance = Math.hypot(event.clientX - x, event.clientY - y);
        if (distance < least) [best, least] = [point, distance];
      }
      if (best) show(best);
      else hide();
    };
    chart.addEventListener("pointermove", nearest);
    chart.addEventListener("pointerdown", nearest);
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("focusin", (event) => { if (words.has(event.target)) show(event.target); });
    chart.addEventListener("focusout", hide);
    chart.addEventListener("keydown", (event) => {
      const at = points.indexOf(event.target);
      if (at < 0) return;
      const series = points[at].parentNode;
      let next = null;
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        next = points[at + (event.key === "ArrowRight" ? 1 : -1)];
      } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const step = event.key === "ArrowDown" ? 1 : -1;
        const column = [...series.querySelectorAll(".p")].indexOf(points[at]);
        let other = at;
        while (points[other] && points[other].parentNode === series) other += step;
        if (points[other]) next = [...points[other].parentNode.querySelectorAll(".p")][column] ?? points[other];
      } else if (event.key === "Escape") {
        hide();
      }
      if (next) {
        event.preventDefault();
        next.focus();
      }
    });
  };
  const bind = (part) => {
    namePoints(part);
    part.querySelectorAll("svg.chart").forEach(listen);
  };
  bind(document);
  // Of a page that changes: this part of it is new.
  document.addEventListener("drawn", (event) => {
    if (shown && !shown.isConnected) {
      shown = null;
      tip.hidden = true;
    }
    bind(event.target);
  });
  addEventListener("scroll", () => {
    if (shown && shown === document.activeElement) place();
    else hide();
  }, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
})();
