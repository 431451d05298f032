// The overview: requests, failures, tokens, cost and latency over time, by model and by key.

import { clear, el, named, redraw, table, the } from "./dom.js";
import { Chart } from "./charts.js";
import { now } from "./api.js";
import { UNKNOWN, brief, cents, lasting, money, percent, seconds, sum } from "./format.js";

const METRICS = [
  { title: "Requests", of: ["requests"], format: brief, total: (each) => brief(total(each, "requests")) },
  { title: "Failed requests", of: ["failed"], format: brief, total: (each) => brief(total(each, "failed")) },
  { title: "Tokens", of: ["input", "output"], format: brief, total: (each) => brief(total(each, "input") + total(each, "output")) },
  { title: "Cost", of: ["cost"], format: axisMoney, total: (each) => cents(total(each, "cost")) },
  { title: "Time to the first token (streams)", of: ["first_median", "first_late"], format: seconds, total: () => "" },
  { title: "Time to the end", of: ["total_median", "total_late"], format: seconds, total: () => "" },
];
const NAMES = {
  requests: "requests", failed: "failed", input: "input", output: "output", cost: "cost",
  first_median: "median", first_late: "95th percentile",
  total_median: "median", total_late: "95th percentile",
};

let charts = null;

export function path() {
  const until = Math.ceil(now() / 5) * 5;
  const query = new URLSearchParams({ since: until - Number(the("overview-period").value), until, group: the("overview-group").value });
  return `brim/series?${query}`;
}

export function update(data) {
  if (!charts) {
    charts = METRICS.map(({ title, format }) => new Chart(title, format));
    the("charts").replaceChildren(...charts.map((chart) => chart.element));
  }
  the("no-history").hidden = data.days > 0;
  METRICS.forEach((metric, place) => charts[place].show(chartData(data, metric)));
  redraw(the("overview-figures"), figures(data), () => figures(data).map(figure));
  redraw(the("sums"), [data.by_model, data.by_key, data.reasons], () => tables(data));
}

export function reset() {
  charts = null;
  for (const id of ["charts", "overview-figures", "sums"]) clear(the(id));
}

function chartData(data, metric) {
  const isGrouped = data.lines.length !== 1 || data.lines[0].name;
  const lines = isGrouped
    ? data.lines.map((line) => ({ name: line.name, values: grouped(line, metric) }))
    : metric.of.map((field) => ({ name: NAMES[field], values: data.lines[0][field] }));
  return { since: data.since, step: data.step, lines, total: metric.total(data.by_model) };
}

/** One value for each group: tokens together, and the median of durations. */
function grouped(line, { of }) {
  return of[0] === "input" ? line.input.map((value, at) => value + line.output[at]) : line[of[0]];
}

const total = (rows, field) => sum(rows, (row) => row[field]);

function axisMoney(value) {
  return value >= 0.01 || value === 0 ? `$${Number(value.toPrecision(3))}` : money(value);
}

// Figures and tables

function figures(data) {
  const rows = data.by_model;
  const [requests, failed] = [total(rows, "requests"), total(rows, "failed")];
  const [input, cached] = [total(rows, "input"), total(rows, "cached")];
  return [
    ["Requests", brief(requests), `in ${lasting(data.until - data.since)}`],
    ["Failed", brief(failed), requests ? percent(failed, requests) : ""],
    ["Input", brief(input), input ? `${percent(cached, input)} cached` : "tokens"],
    ["Output", brief(total(rows, "output")), "tokens"],
    ["Cost", cents(total(rows, "cost")), unpriced(rows)],
  ];
}

function unpriced(rows) {
  const number = total(rows, "unpriced");
  return number ? `${brief(number)} without a price` : "";
}

const figure = ([title, value, note]) =>
  el("div", el("dt", title), el("dd", el("strong", value), " ", el("span", note)));

function tables(data) {
  return [
    data.reasons.length > 0 && [
      el("h2", "Why requests failed"),
      table("Reasons, the most frequent first", REASONS, data.reasons, "reasons"),
    ],
    groups("By model", data.by_model),
    data.by_key.some((row) => row.name) && groups("By key", data.by_key),
  ];
}

const groups = (title, rows) => [
  el("h2", title),
  rows.length
    ? table(title, GROUPS, rows, "groups")
    : el("p.empty", "No requests in this period."),
];

const REASONS = [
  { title: "Requests", kind: "num", cell: ({ requests }) => el("b", brief(requests)) },
  { title: "Code", cell: ({ name }) => el("code", name) },
  { title: "Reason", kind: "words", cell: ({ reason }) => reason ?? UNKNOWN },
].map((column, place, all) => all[[1, 0, 2][place]]);

const GROUPS = [
  { title: "Name", kind: "wide-name", cell: ({ name }) => named(name || "none") },
  { title: "Requests", kind: "num", cell: ({ requests }) => el("b", brief(requests)) },
  { title: "Failed", kind: "num", cell: ({ failed, requests }) => (failed ? [brief(failed), el("span.detail", percent(failed, requests))] : UNKNOWN) },
  { title: "Input", kind: "num wider", cell: ({ input }) => brief(input) },
  { title: "Cached", kind: "num wider", cell: ({ cached, input }) => percent(cached, input) },
  { title: "Output", kind: "num wider", cell: ({ output }) => brief(output) },
  { title: "Cost", kind: "num", cell: ({ cost }) => el("b", cents(cost)) },
];
