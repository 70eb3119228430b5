// Budgets as bars on a logarithmic axis: a bar is a slider of its clients, a border between groups a slider, too.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 380, HEIGHT = 230, LEFT = 14, RIGHT = 14, TOP = 30, BOTTOM = 30;

function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const short = (value) => `${Number(value.toPrecision(4))}`;
const rounded = (count) => {
  const size = 10 ** Math.max(0, Math.floor(Math.log10(count)) - 1);
  return Math.max(1, Math.round(count / size) * size);
};

export class Histogram {
  // `changed.count(index, clients)`, `changed.remove(index)` and `changed.borders(epsilons)` hear of edits.
  constructor(element, changed) {
    this.element = element;
    this.changed = changed;
    this.bars = [];
    this.borders = [];
  }

  show({ bars, isEdited, borders }) {
    if (this.dragging) return;
    const focused = document.activeElement?.closest?.("[data-part]")?.dataset.part;
    this.bars = bars;
    this.isEdited = isEdited;
    // A border is the place of the first bar of its group; the first group begins with the first bar.
    const lows = (borders ?? []).filter((low) => bars.length && low > bars[0][0]);
    this.borders = [...new Set(lows.map((low) => bars.findIndex(([, high]) => high >= low)))].filter((at) => at > 0);
    this.borders.sort((a, b) => a - b);
    this.most = Math.max(1, ...bars.map(([, , count]) => count)) * 1.3;
    this.draw();
    if (focused && this.element.contains(document.activeElement) === false) {
      this.element.querySelector(`[data-part="${focused}"]`)?.focus();
    }
  }

  x(epsilon) {
    const low = Math.log(this.bars[0][0] / 1.6), high = Math.log(this.bars.at(-1)[1] * 1.6);
    return LEFT + ((Math.log(epsilon) - low) / (high - low)) * (WIDTH - LEFT - RIGHT);
  }

  y(count) {
    return HEIGHT - BOTTOM - (count / this.most) * (HEIGHT - TOP - BOTTOM);
  }

  between(at) {
    return (this.x(this.bars[at - 1][1]) + this.x(this.bars[at][0])) / 2;
  }

  groupOf(index) {
    return this.borders.filter((at) => at <= index).length;
  }

  draw() {
    const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "edit" });
    const bottom = HEIGHT - BOTTOM;
    svg.append(draw("path", { class: "axis", d: `M${LEFT} ${bottom}H${WIDTH - RIGHT}` }));
    const centres = this.bars.map(([low, high]) => (this.x(low) + this.x(high)) / 2);
    const gap = Math.min(44, ...centres.slice(1).map((x, at) => x - centres[at]));
    const several = this.borders.length > 0;
    let labelled = -100, counted = -100;
    this.bars.forEach(([low, high, count], index) => {
      const isOne = low === high;
      const left = isOne ? centres[index] - gap * 0.4 : this.x(low);
      const right = isOne ? centres[index] + gap * 0.4 : this.x(high);
      const colour = several ? `g${this.groupOf(index) % 6}` : "alone";
      const top = this.y(count);
      const words = isOne ? `Clients at epsilon ${short(low)}` : `Clients from epsilon ${short(low)} to ${short(high)}`;
      const bar = draw("g", { class: `bar ${colour}`, "data-part": `bar-${index}` });
      bar.append(
        draw("rect", { class: "grab", x: left, y: TOP - 14, width: right - left, height: bottom - TOP + 14 }),
        draw("path", { class: "fill solid", d: `M${left} ${bottom}V${top}H${right}V${bottom}Z` }),
      );
      if (this.isEdited) {
        const facts = { min: 1, max: Math.round(this.most), now: count };
        for (const [name, value] of Object.entries(facts)) bar.setAttribute(`aria-value${name}`, value);
        bar.setAttribute("role", "slider");
        bar.setAttribute("tabindex", "0");
        bar.setAttribute("aria-orientation", "vertical");
        bar.setAttribute("aria-valuetext", `${count} clients`);
        bar.append(draw("path", { class: "handle", d: `M${left} ${top}H${right}` }));
        this.listen(bar, (event) => this.dragBar(event, index), (key) => this.pressBar(key, index));
      } else {
        bar.setAttribute("role", "img");
      }
      bar.setAttribute("aria-label", isOne && this.isEdited ? words : `${words}: ${count}`);
      svg.append(bar);
      if (centres[index] - labelled > 34) {
        svg.append(this.label(centres[index], bottom + 18, short(low)));
        labelled = centres[index];
      }
      if (this.bars.length <= 12 && centres[index] - counted > 38) {
        svg.append(this.label(centres[index], top - 7, count.toLocaleString("en")));
        counted = centres[index];
      }
    });
    this.borders.forEach((at, number) => svg.append(this.border(at, number)));
    svg.append(this.label(WIDTH - RIGHT, HEIGHT - 1, "epsilon", "end"));
    this.element.replaceChildren(svg);
  }

  label(x, y, words, anchor = "middle") {
    return draw("text", { class: "tick", x, y, "text-anchor": anchor }, words);
  }

  border(at, number) {
    const x = this.between(at);
    const border = draw("g", {
      class: "border", "data-part": `border-${number}`, role: "slider", tabindex: "0",
      "aria-label": `Border between groups ${number + 1} and ${number + 2}`,
      "aria-valuemin": short(this.bars[1][0]), "aria-valuemax": short(this.bars.at(-1)[0]),
      "aria-valuenow": short(this.bars[at][0]), "aria-valuetext": `from epsilon ${short(this.bars[at][0])}`,
    });
    border.append(
      draw("rect", { class: "grab", x: x - 11, y: 0, width: 22, height: HEIGHT - BOTTOM }),
      draw("path", { class: "edge", d: `M${x} 12V${HEIGHT - BOTTOM}` }),
      draw("circle", { class: "knob", cx: x, cy: 9, r: 6 }),
    );
    this.listen(border, (event) => this.dragBorder(event, number), (key) => this.pressBorder(key, number));
    return border;
  }

  listen(part, drag, press) {
    part.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      part.focus();
      drag(event);
    });
    part.addEventListener("keydown", (event) => { if (press(event.key)) event.preventDefault(); });
  }

  // Follows the pointer in the picture's own units, until it is lifted.
  follow(event, moved, done) {
    const box = this.element.getBoundingClientRect();
    this.dragging = true;
    const at = (e) => [((e.clientX - box.left) / box.width) * WIDTH, ((e.clientY - box.top) / box.height) * HEIGHT];
    const move = (e) => moved(...at(e));
    const up = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
      removeEventListener("pointercancel", up);
      this.dragging = false;
      done();
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
    addEventListener("pointercancel", up);
  }

  dragBar(event, index) {
    const before = this.bars[index][2];
    this.follow(event, (_, y) => {
      const share = (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM);
      this.bars[index] = [this.bars[index][0], this.bars[index][1], rounded(Math.max(1, Math.min(1, share) * this.most))];
      this.draw();
    }, () => { if (this.bars[index][2] !== before) this.changed.count(index, this.bars[index][2]); });
  }

  pressBar(key, index) {
    const count = this.bars[index][2];
    const step = Math.max(1, 10 ** Math.floor(Math.log10(count / 2)));
    const next = {
      ArrowUp: count + step, ArrowRight: count + step, ArrowDown: count - step, ArrowLeft: count - step,
      PageUp: count * 2, PageDown: Math.round(count / 2),
    }[key];
    if (key === "Delete" && this.bars.length > 1) this.changed.remove(index);
    else if (next == null) return false;
    else this.changed.count(index, Math.max(1, next));
    return true;
  }

  // From which epsilon each group begins.
  edges(borders) {
    return [0, ...borders].map((at) => this.bars[at][0]);
  }

  limits(number) {
    return [(this.borders[number - 1] ?? 0) + 1, (this.borders[number + 1] ?? this.bars.length) - 1];
  }

  dragBorder(event, number) {
    const before = this.borders[number];
    const [low, high] = this.limits(number);
    this.follow(event, (x) => {
      let best = before;
      for (let at = low; at <= high; at += 1) {
        if (Math.abs(this.between(at) - x) < Math.abs(this.between(best) - x)) best = at;
      }
      this.borders[number] = best;
      this.draw();
    }, () => { if (this.borders[number] !== before) this.changed.borders(this.edges(this.borders)); });
  }

  pressBorder(key, number) {
    const [low, high] = this.limits(number);
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[key];
    if (key === "Delete") {
      this.changed.borders(this.edges(this.borders.filter((_, at) => at !== number)));
      return true;
    }
    if (step == null) return false;
    const next = this.borders[number] + step;
    if (next >= low && next <= high) {
      this.changed.borders(this.edges(this.borders.map((at, index) => (index === number ? next : at))));
    }
    return true;
  }

  // One more border, in the middle of the largest group; nothing where each bar is a group.
  add() {
    const ends = [0, ...this.borders, this.bars.length];
    let [start, size] = [0, 1];
    ends.slice(1).forEach((end, at) => { if (end - ends[at] > size) [start, size] = [ends[at], end - ends[at]]; });
    if (size < 2) return false;
    const borders = [...this.borders, start + Math.ceil(size / 2)].sort((a, b) => a - b);
    this.changed.borders(this.edges(borders));
    return true;
  }
}
