// Charts. Present amounts are solid; trimmed or reserved ones hatched, not only coloured.

import { svg } from "./dom.js";

const LIMIT_AT = 0.75;
const FINEST = 1000;

/** A hatch pattern for one chart. */
function hatch(id) {
  return svg(
    "pattern",
    { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 5, height: 5, class: "hatch-ground" }),
    svg("line", { x1: 0, y1: 0, x2: 0, y2: 5, class: "hatch-line" }),
  );
}

let made = 0;

/** A chart with a text alternative; `draw(hatching)` returns its content. */
function picture(width, height, words, className, draw) {
  const id = `hatch-${(made += 1)}`;
  return svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      class: className,
      role: "img",
      "aria-label": words,
      preserveAspectRatio: "none",
    },
    svg("defs", {}, hatch(id)),
    draw(`url(#${id})`),
  );
}

const box = (x, y, width, height, attributes) =>
  svg("rect", { x, y, width: Math.max(0, width), height, ...attributes });

/** How full the context window was: the same scale in every row, the limit at three quarters. */
export function fill(request, words) {
  const { tokens, tokens_before: before, limit } = request;
  const width = 112;
  const at = LIMIT_AT * width;
  const scaled = (count) => Math.min(width, (count / limit) * at);
  return picture(width, 36, words, "fill", (hatching) => [
    box(0, 13, at, 10, { class: "track" }),
    box(0, 13, scaled(tokens), 10, { class: tokens > limit ? "solid full" : "solid" }),
    box(scaled(tokens), 13, scaled(before) - scaled(tokens), 10, { fill: hatching }),
    svg("line", { x1: at, x2: at, y1: 0, y2: 36, class: "limit" }),
  ]);
}

/** The spent and reserved parts of a cap. */
export function meter(spent, reserved, most, words) {
  const width = 200;
  const full = spent + reserved >= most;
  // Small amounts stay visible, and so does a small rest.
  const end = full ? width : width - 1;
  const part = (value) => (value > 0 ? Math.min(end, Math.max(1, (value / most) * width)) : 0);
  return picture(width, 12, words, "meter", (hatching) => [
    box(0, 1, width, 10, { class: "track" }),
    box(0, 1, part(spent), 10, { class: full ? "solid full" : "solid" }),
    box(part(spent), 1, part(spent + reserved) - part(spent), 10, { fill: hatching }),
  ]);
}

/** A share of the total, in a row of a table that also has the number. */
export function share(value, all) {
  const width = all > 0 ? (value / all) * 100 : 0;
  return svg(
    "svg",
    { viewBox: "0 0 100 8", class: "share", "aria-hidden": "true", preserveAspectRatio: "none" },
    box(0, 0, 100, 8, { class: "track" }),
    box(0, 0, width, 8, { class: "solid" }),
  );
}

/** The size of a message: what is left, and what was trimmed. */
export function remains(before, after, largest) {
  const part = (size) => (size / largest) * 100;
  return picture(100, 8, `${after} of ${before} tokens`, "share", (hatching) => [
    box(0, 0, 100, 8, { class: "track" }),
    box(0, 0, part(Math.min(before, after)), 8, { class: "solid" }),
    box(part(after), 0, part(Math.max(0, before - after)), 8, { fill: hatching }),
  ]);
}

/** Columns, one for each day. */
export function columns(values, largest, words) {
  const [width, height] = [1000, 140];
  const step = width / values.length;
  const gap = Math.min(6, step / 4);
  const tall = (value) => (value > 0 ? Math.max(2, (value / largest) * (height - 4)) : 0);
  const column = (value, place) =>
    box(place * step + gap / 2, height - tall(value), step - gap, tall(value), { class: "solid" });
  return picture(width, height, words, "columns", () => [
    level(4, width, "grid"),
    level(height / 2 + 2, width, "grid"),
    values.map(column),
    level(height, width, "ground"),
  ]);
}

const level = (y, width, kind) => svg("line", { x1: 0, x2: width, y1: y, y2: y, class: kind });

/** Parts side by side on a scale, with a mark at the limit if there is one. */
export function stack(parts, scale, limit, words) {
  const [width, height] = [1000, 30];
  return picture(width, height, words, "stack", (hatching) => {
    let x = 0;
    const part = ({ kind, size }) => {
      const wide = (size / scale) * width;
      const look = kind === "cut" ? { fill: hatching } : { class: `part ${kind}` };
      x += wide;
      return box(x - wide, 3, wide, height - 6, look);
    };
    const track = box(0, 3, width, height - 6, { class: "track" });
    return [track, joined(parts, scale / FINEST).map(part), mark(limit, scale, width, height)];
  });
}

function mark(limit, scale, width, height) {
  if (limit === null) return null;
  const x = (limit / scale) * width;
  return svg("line", { x1: x, x2: x, y1: 0, y2: height, class: "limit" });
}

/**
 * Fewer parts, for a conversation of any length: neighbours of one kind are merged, and so are
 * those of one kind that end in the same `step` of the scale. Their sizes stay exact.
 */
function joined(parts, step) {
  const runs = [];
  let [end, first] = [0, 0];
  for (const { kind, size } of parts) {
    if (!(size > 0)) continue;
    if (Math.floor((end + size) / step) > Math.floor(end / step)) first = runs.length;
    end += size;
    const like = runs.slice(first).find((run) => run.kind === kind) ?? runs.at(-1);
    if (like?.kind === kind) like.size += size;
    else runs.push({ kind, size });
  }
  return runs;
}
