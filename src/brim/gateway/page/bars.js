// Pictures. What went out is solid, what was cut or set aside is hatched: colour alone says nothing.

import { svg } from "./dom.js";

const LIMIT_AT = 0.75;

/** Hatching, to be used within the one picture. */
function hatch(id) {
  return svg("pattern", { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 5, height: 5, class: "hatch-ground" }),
    svg("line", { x1: 0, y1: 0, x2: 0, y2: 5, class: "hatch-line" }));
}

let made = 0;

/** A picture with its words; `draw(hatching)` gives what is in it. */
function picture(width, height, words, className, draw) {
  const id = `hatch-${(made += 1)}`;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: className, role: "img", "aria-label": words, preserveAspectRatio: "none" },
    svg("defs", {}, hatch(id)), draw(`url(#${id})`));
}

const box = (x, y, width, height, attributes) => svg("rect", { x, y, width: Math.max(0, width), height, ...attributes });

/** How full the window was: the same scale in every row, with the limit at three quarters. */
export function fill(request, words) {
  const width = 120, at = LIMIT_AT * width, { tokens, tokens_before: before, limit } = request;
  const scaled = (count) => Math.min(width, (count / limit) * at);
  return picture(width, 14, words, "fill", (hatching) => [
    box(0, 2, at, 10, { class: "track" }),
    box(0, 2, scaled(tokens), 10, { class: "solid" }),
    before > tokens ? box(scaled(tokens), 2, scaled(before) - scaled(tokens), 10, { fill: hatching }) : null,
    svg("line", { x1: at, x2: at, y1: 0, y2: 14, class: "limit" }),
  ]);
}

/** What is spent and what is set aside, of what may be. */
export function meter(spent, reserved, most, words) {
  const width = 200, part = (value) => Math.min(width, (value / (most || 1)) * width);
  const full = spent + reserved >= most;
  return picture(width, 12, words, "meter", (hatching) => [
    box(0, 1, width, 10, { class: "track" }),
    box(0, 1, part(spent), 10, { class: full ? "solid full" : "solid" }),
    box(part(spent), 1, part(spent + reserved) - part(spent), 10, { fill: hatching }),
  ]);
}

/** A share of the largest, in a table's row; the number beside it says the same. */
export function share(value, largest) {
  const width = largest > 0 ? (value / largest) * 100 : 0;
  return svg("svg", { viewBox: "0 0 100 8", class: "share", "aria-hidden": "true", preserveAspectRatio: "none" },
    box(0, 0, 100, 8, { class: "track" }), box(0, 0, width, 8, { class: "solid" }));
}

/** Columns, one a day. */
export function columns(days, largest, words) {
  const width = 1000, height = 140, step = width / days.length, gap = Math.min(6, step * 0.25);
  return picture(width, height, words, "columns", () => [
    ...[0.5, 1].map((level) => svg("line", { x1: 0, x2: width, y1: height - level * (height - 4), y2: height - level * (height - 4), class: "grid" })),
    ...days.map((day, place) => {
      const tall = largest > 0 ? (day.value / largest) * (height - 4) : 0;
      return box(place * step + gap / 2, height - Math.max(tall, day.value > 0 ? 2 : 0), step - gap, Math.max(tall, day.value > 0 ? 2 : 0), { class: "solid" });
    }),
    svg("line", { x1: 0, x2: width, y1: height, y2: height, class: "ground" }),
  ]);
}

/** Parts side by side on a scale; neighbours of one kind are drawn as one. */
export function stack(parts, scale, marks, words) {
  const width = 1000, height = 30;
  return picture(width, height, words, "stack", (hatching) => {
    let x = 0;
    const drawn = joined(parts).map(({ kind, size }) => {
      const wide = (size / scale) * width;
      const part = box(x, 3, wide, height - 6, kind === "cut" ? { fill: hatching } : { class: `part ${kind}` });
      x += wide;
      return part;
    });
    const lines = marks.map((mark) => svg("line", { x1: (mark / scale) * width, x2: (mark / scale) * width, y1: 0, y2: height, class: "limit" }));
    return [box(0, 3, width, height - 6, { class: "track" }), ...drawn, ...lines];
  });
}

function joined(parts) {
  const runs = [];
  for (const part of parts) {
    const last = runs.at(-1);
    if (last?.kind === part.kind) last.size += part.size;
    else if (part.size > 0) runs.push({ ...part });
  }
  return runs;
}
