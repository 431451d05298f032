// Line charts over time: hover or arrow keys show the values at a point. Ten thousand points are
// drawn as the lowest and highest value in each pixel column.

import { el, svg } from "./dom.js";
import { UNKNOWN, atMinute, largest } from "./format.js";

const HEIGHT = 168;
const TOP = 12;
const BOTTOM = 24;
const LEFT = 56;
const RIGHT = 8;
const LEVELS = 3;
const STEPS = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

/** One chart: `show` draws data, and keeps the focus and the point that is read. */
export class Chart {
  constructor(title, format) {
    this.title = title;
    this.format = format;
    this.at = null;
    this.legend = el("ul.legend");
    this.total = el("strong");
    this.readout = el("div.readout", { hidden: true });
    this.plot = el("div.plot", {
      tabindex: 0,
      role: "slider",
      "aria-label": title,
      "aria-valuemin": 0,
      onkeydown: (event) => this.#move(event),
      onpointermove: (event) => this.#point(event),
      onpointerleave: () => this.#read(null),
      onblur: () => this.#read(null),
    });
    this.element = el(
      "figure.chart",
      el("figcaption", el("h2", title), this.total),
      el("div.plot-frame", this.plot, this.readout),
      this.legend,
    );
    this.sizes = new ResizeObserver(() => this.#draw());
    this.sizes.observe(this.plot);
  }

  /** Draw lines `{ name, values }` over times from `since` on, `step` seconds apart. */
  show({ since, step, lines, total = "" }) {
    Object.assign(this, { since, step, lines });
    this.count = lines.length ? lines[0].values.length : 0;
    if (this.total.textContent !== total) this.total.textContent = total;
    const named = lines.length > 1 ? lines : [];
    this.legend.replaceChildren(
      ...named.map(({ name }, place) => el("li", el(`span.key.line-${place}`), name)),
    );
    if (this.at !== null) this.at = Math.min(this.at, this.count - 1);
    this.#draw();
  }

  // Drawing

  #draw() {
    const width = Math.round(this.plot.clientWidth);
    if (!width || !this.count) return;
    this.width = width;
    const top = roundUp(largest(this.lines, ({ values }) => largest(values, (value) => value ?? 0)));
    this.scale = { x: (width - LEFT - RIGHT) / Math.max(1, this.count - 1), y: HEIGHT - TOP - BOTTOM, top };
    this.cross = svg("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.dots = this.lines.map((_, place) => svg("circle", { r: 3.5, class: `dot line-${place}`, visibility: "hidden" }));
    this.plot.replaceChildren(
      svg(
        "svg",
        { width, height: HEIGHT, "aria-hidden": "true" },
        this.#levels(width),
        this.#times(width),
        this.lines.map((line, place) => this.#line(line, place)),
        this.cross,
        this.dots,
      ),
    );
    this.#read(this.at);
  }

  #levels(width) {
    return Array.from({ length: LEVELS + 1 }, (_, place) => {
      const value = (this.scale.top * place) / LEVELS;
      const y = this.#y(value);
      return [
        svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: place ? "grid" : "ground" }),
        svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, this.format(value)),
      ];
    });
  }

  #times(width) {
    const number = Math.max(2, Math.min(5, Math.floor(width / 130)));
    return Array.from({ length: number }, (_, place) => {
      const index = Math.round(((this.count - 1) * place) / (number - 1));
      const anchor = place === 0 ? "start" : place === number - 1 ? "end" : "middle";
      const where = { x: this.#x(index), y: HEIGHT - 6, "text-anchor": anchor };
      return svg("text", where, atMinute(this.#time(index), this.step * this.count));
    });
  }

  #line({ values }, place) {
    const runs = this.#runs(values);
    const path = runs.map((run) => `M${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`);
    const parts = [svg("path", { d: path.join(""), class: `line line-${place}` })];
    if (this.lines.length === 1 && path.length) {
      const ground = this.#y(0);
      const areas = runs.map((run, at) => `${path[at]}L${run.at(-1)[0].toFixed(1)} ${ground}L${run[0][0].toFixed(1)} ${ground}Z`);
      parts.unshift(svg("path", { d: areas.join(""), class: "area" }));
    }
    const alone = runs.filter((run) => run.length === 1);
    return [parts, alone.map(([[cx, cy]]) => svg("circle", { cx, cy, r: 2, class: `dot line-${place}` }))];
  }

  /** Runs of points without a gap; where several share a pixel column, its extremes. */
  #runs(values) {
    const runs = [];
    let run = [];
    const end = () => {
      if (run.length) runs.push(run);
      run = [];
    };
    for (const { x, low, high } of this.#columns(values)) {
      if (low === null) end();
      else if (low === high) run.push([x, this.#y(low)]);
      else run.push([x, this.#y(low)], [x, this.#y(high)]);
    }
    end();
    return runs;
  }

  #columns(values) {
    const each = Math.max(1, Math.ceil(values.length / Math.max(1, this.width - LEFT - RIGHT)));
    const columns = [];
    for (let start = 0; start < values.length; start += each) {
      const some = values.slice(start, start + each).filter((value) => value !== null);
      const x = this.#x(Math.min(values.length - 1, start + (each - 1) / 2));
      columns.push({ x, low: some.length ? Math.min(...some) : null, high: some.length ? Math.max(...some) : null });
    }
    return columns;
  }

  #x = (index) => LEFT + index * this.scale.x;
  #y = (value) => TOP + this.scale.y * (1 - value / this.scale.top);
  #time = (index) => this.since + index * this.step;

  // Reading

  #move(event) {
    if (!(event.key in STEPS) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const from = this.at ?? (STEPS[event.key] > 0 ? -1 : this.count);
    this.#read(Math.max(0, Math.min(this.count - 1, from + STEPS[event.key])));
  }

  #point(event) {
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    const index = Math.round((x - LEFT) / this.scale.x);
    this.#read(index >= 0 && index < this.count ? index : null);
  }

  /** Show the values at a point, or none. */
  #read(index) {
    this.at = index;
    const isRead = index !== null && index < this.count;
    this.readout.hidden = !isRead;
    const shown = isRead ? "visible" : "hidden";
    this.cross?.setAttribute("visibility", shown);
    this.plot.setAttribute("aria-valuemax", this.count - 1);
    this.plot.setAttribute("aria-valuenow", isRead ? index : this.count - 1);
    this.plot.setAttribute("aria-valuetext", this.#words(isRead ? index : this.count - 1));
    this.dots?.forEach((dot, place) => {
      const value = isRead ? this.lines[place].values[index] : null;
      dot.setAttribute("visibility", value === null ? "hidden" : "visible");
      if (value === null) return;
      dot.setAttribute("cx", this.#x(index));
      dot.setAttribute("cy", this.#y(value));
    });
    if (!isRead) return;
    const x = this.#x(index);
    this.cross.setAttribute("x1", x);
    this.cross.setAttribute("x2", x);
    this.#placeReadout(index, x);
  }

  #placeReadout(index, x) {
    this.readout.replaceChildren(
      el("span", atMinute(this.#time(index), 0)),
      ...this.lines.map(({ name, values }, place) =>
        el("div", el(`span.key.line-${place}`), el("span", name), el("b", this.#value(values[index]))),
      ),
    );
    const isRight = x > this.width / 2;
    this.readout.style.left = isRight ? "" : `${x + 10}px`;
    this.readout.style.right = isRight ? `${this.width - x + 10}px` : "";
  }

  #value = (value) => (value === null ? UNKNOWN : this.format(value));

  #words(index) {
    const values = this.lines?.map(({ name, values }) => `${name} ${this.#value(values[index])}`) ?? [];
    return [atMinute(this.#time(index), 0), ...values].join(", ");
  }
}

/** Return the next higher number that reads well on an axis with three levels. */
function roundUp(value) {
  if (!(value > 0)) return 3;
  const size = 10 ** Math.floor(Math.log10(value / LEVELS));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * size * LEVELS >= value * 0.999) ?? 10;
  return step * size * LEVELS;
}
