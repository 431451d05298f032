// What is known of each model at each upstream: its window, and how its counts compare with brim's.

import { el, table, the } from "./dom.js";
import { UNKNOWN, number, tokens } from "./words.js";

export const path = "brim/lanes";

export function take(told) {
  const shown = JSON.stringify(told);
  if (the("lanes").dataset.shows === shown) return;
  the("lanes").dataset.shows = shown;
  the("lanes").replaceChildren(...(told.data.length ? known(told) : [nothing()]));
}

export const forget = () => {
  the("lanes").replaceChildren();
  the("lanes").dataset.shows = "";
};

const known = (told) => [
  table("Models, the latest asked first", COLUMNS, told.data),
  told.left_out ? el("p", { class: "hint" }, `And ${number(told.left_out, "model")} more.`) : "",
];

const COLUMNS = [
  { title: "Model", className: "wide-name", cell: (lane) => [el("span", { class: "name" }, lane.model || "none named"), el("span", { class: "beside" }, lane.upstream)] },
  { title: "Window", className: "num", cell: (lane) => (lane.window === null ? "unknown" : el("b", {}, tokens(lane.window))) },
  { title: "Known from", cell: source },
  { title: "Limit", className: "num", cell: (lane) => el("span", { title: `less ${tokens(lane.reply)} for the answer and ${tokens(lane.margin)} margin` }, tokens(lane.limit)) },
  { title: "Margin", className: "num", cell: (lane) => tokens(lane.margin) },
  { title: "Counted", cell: counted },
  { title: "Learned ratio", cell: ratio },
  { title: "Server adds", className: "num", cell: (lane) => (lane.offset ? tokens(lane.offset) : UNKNOWN) },
  { title: "Largest accepted", className: "num", cell: (lane) => tokens(lane.accepted) },
  { title: "Policy", cell: (lane) => lane.policy },
];

function source(lane) {
  const learned = lane.source.startsWith("a refusal");
  return el("span", { class: learned ? "state odd" : "" }, lane.window === null ? "nobody yet" : lane.source);
}

function counted(lane) {
  return lane.exact ? "exactly" : "by estimate";
}

function ratio(lane) {
  if (lane.ratio === null) return lane.exact ? UNKNOWN : "no reports yet";
  const [low, high] = [Math.min(...lane.ratios), Math.max(...lane.ratios)];
  return [el("b", {}, `× ${lane.ratio.toFixed(2)}`), el("span", { class: "beside" }, `${low.toFixed(2)}–${high.toFixed(2)} in ${number(lane.ratios.length, "report")}`)];
}

const nothing = () => el("div", { class: "empty" },
  el("p", {}, el("strong", {}, "No model was asked for yet."), " To see whether upstreams can be used, and their windows:"),
  el("pre", { tabindex: "0" }, "brim serve --check"));
