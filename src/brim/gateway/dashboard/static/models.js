// What is known about each model at each upstream: its window, and how its counts compare.

import { clear, el, empty, named, redraw, table, the } from "./dom.js";
import { UNKNOWN, number, tokens } from "./format.js";

export const path = "brim/routes";

export function update(data) {
  redraw(the("routes"), data, () => (data.data.length ? models(data) : noModels()));
}

export const reset = () => clear(the("routes"));

const models = (data) => [
  table("Models, the last used first", COLUMNS, data.data),
  data.omitted > 0 && el("p.hint", `And ${number(data.omitted, "model")} more.`),
];

const COLUMNS = [
  {
    title: "Model",
    kind: "wide-name",
    cell: ({ model, upstream }) => named(model || "(no name)", upstream),
  },
  {
    title: "Window",
    kind: "num",
    cell: ({ window }) => el("b", window === null ? "unknown" : tokens(window)),
  },
  { title: "Source", cell: source },
  { title: "Limit", kind: "num", cell: ({ limit }) => tokens(limit) },
  { title: "Margin", kind: "num", cell: ({ margin }) => tokens(margin) },
  { title: "Counted", cell: ({ exact }) => (exact ? "exactly" : "estimated") },
  { title: "Calibration", cell: ratio },
  { title: "Server overhead", kind: "num", cell: ({ offset }) => (offset ? tokens(offset) : UNKNOWN) },
  { title: "Largest accepted", kind: "num", cell: ({ accepted }) => tokens(accepted) },
  { title: "Policy", cell: ({ policy }) => policy },
];

function source({ window, source, rejected_above: rejected, guessed_limit: guessed }) {
  if (window === null) return "unknown";
  const isCalibrated = window === rejected || window === guessed;
  return el(isCalibrated ? "span.state.odd" : "span", source);
}

function ratio({ ratio, ratios, exact }) {
  if (ratio === null) return exact ? UNKNOWN : "no reported usage yet";
  const ends = [Math.min(...ratios), Math.max(...ratios)].map((each) => each.toFixed(2));
  return [
    el("b", `× ${ratio.toFixed(2)}`),
    el("span.detail", `${ends.join("–")} in ${number(ratios.length, "report")}`),
  ];
}

const noModels = () =>
  empty(
    "No model has been used yet.",
    "To check the upstreams and their context windows:",
    "brim serve --check",
  );
