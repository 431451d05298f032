// What is known of each model at each upstream: its window, and how its counts compare with brim's.

import { clear, el, empty, named, redraw, table, the } from "./dom.js";
import { UNKNOWN, number, tokens } from "./words.js";

export const path = "brim/lanes";

export function take(told) {
  redraw(the("lanes"), told, () => (told.data.length ? known(told) : nothing()));
}

export const forget = () => clear(the("lanes"));

const known = (told) => [
  table("Models, the latest asked first", COLUMNS, told.data),
  told.left_out > 0 && el("p.hint", `And ${number(told.left_out, "model")} more.`),
];

const COLUMNS = [
  {
    title: "Model",
    kind: "wide-name",
    cell: ({ model, upstream }) => named(model || "none named", upstream),
  },
  {
    title: "Window",
    kind: "num",
    cell: ({ window }) => el("b", window === null ? "unknown" : tokens(window)),
  },
  { title: "Known from", cell: source },
  { title: "Limit", kind: "num", cell: ({ limit }) => tokens(limit) },
  { title: "Margin", kind: "num", cell: ({ margin }) => tokens(margin) },
  { title: "Counted", cell: ({ exact }) => (exact ? "exactly" : "by estimate") },
  { title: "Learned ratio", cell: ratio },
  { title: "Server adds", kind: "num", cell: ({ offset }) => (offset ? tokens(offset) : UNKNOWN) },
  { title: "Largest accepted", kind: "num", cell: ({ accepted }) => tokens(accepted) },
  { title: "Policy", cell: ({ policy }) => policy },
];

function source({ window, source, refused_above: refused, guessed_limit: guessed }) {
  if (window === null) return "nobody yet";
  const isLearned = window === refused || window === guessed;
  return el(isLearned ? "span.state.odd" : "span", source);
}

function ratio({ ratio, ratios, exact }) {
  if (ratio === null) return exact ? UNKNOWN : "no reports yet";
  const ends = [Math.min(...ratios), Math.max(...ratios)].map((each) => each.toFixed(2));
  return [
    el("b", `× ${ratio.toFixed(2)}`),
    el("span.beside", `${ends.join("–")} in ${number(ratios.length, "report")}`),
  ];
}

const nothing = () =>
  empty(
    "No model was asked for yet.",
    "To see whether upstreams can be used, and their windows:",
    "brim serve --check",
  );
