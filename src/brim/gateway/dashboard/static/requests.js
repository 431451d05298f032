// The list of requests: rows are kept and mended in place, so that nothing moves under the hand.

import { cellOf, clear, el, empty, headed, named, redraw, the } from "./dom.js";
import { fill } from "./bars.js";
import { now } from "./asking.js";
import { UNKNOWN, atMoment, atTime, brief, cuts, money, percent } from "./words.js";
import { seconds, sum, tokens } from "./words.js";

const SHOWN = 100;
const LOST = 10;
const UNREADY = new Set(["books_away", "too_many_requests_at_once"]);
const BAD = new Set(["failed", "upstream broke", "stopped", "refused"]);
const COLUMNS = [
  { title: "Came", kind: "time", cell: link },
  { title: "Model", kind: "model", cell: model },
  { title: "Key", kind: "by", cell: ({ key, project }) => named(key ?? UNKNOWN, project) },
  { title: "Window", kind: "window", cell: fullness },
  { title: "Tokens", kind: "size num", cell: sizes },
  { title: "Limit", kind: "most num", cell: ({ limit }) => tokens(limit) },
  { title: "Cut", kind: "cut", cell: ({ cut }) => (isCut({ cut }) ? named(cuts(cut)) : UNKNOWN) },
  { title: "End", kind: "end", cell: ending },
  { title: "Took", kind: "took num", cell: took },
  { title: "Cost", kind: "cost num", cell: ({ cost }) => money(cost) },
];

export const path = `brim/requests?last=${SHOWN}`;

const known = new Map();
const rows = new Map();
let polls = 0;
/** The request that the tabulator stops at: the last one that had the focus, else the newest. */
let stop = null;

/** Take in what one gateway knows. Of several behind one address, all that were heard are kept. */
export function take(answer) {
  polls += 1;
  for (const record of answer.data) known.set(record.id, { record, heard: polls });
  newest().forEach(({ record, heard }, place) => {
    const isLost = record.end === "open" && heard < polls - LOST;
    if (place >= SHOWN || isLost) known.delete(record.id);
  });
  show();
}

export function forget() {
  known.clear();
  rows.clear();
  stop = null;
  clear(the("list"));
}

const newest = () => [...known.values()].sort((one, other) => other.record.time - one.record.time);

export const isBad = (record) => record.status >= 400 || BAD.has(record.end);
/** Whether no upstream got it: a plan alone was asked for, or the gateway itself said no. */
export const isUnsent = ({ dry_run: isDryRun, end, code }) =>
  isDryRun || (code !== null && (end === "refused" || UNREADY.has(code)));
const isCut = (record) => Object.keys(record.cut ?? {}).length > 0;

/** Draw the list as the switches above it want it. */
export function show() {
  const all = newest().map(({ record }) => record);
  const wanted = all.filter(isWanted);
  redraw(the("figures"), figures(all), () => figures(all).map(figure));
  if (wanted.length === 0) {
    rows.clear();
    return redraw(the("list"), all.length > 0, () => (all.length ? noneLikeThat() : nothing()));
  }
  const body = the("rows") ?? frame();
  drop(new Set(wanted.map((record) => record.id)));
  wanted.forEach((record, place) => {
    const line = lineOf(record);
    if (body.children[place] !== line) body.insertBefore(line, body.children[place] ?? null);
  });
  stopAt(rows.get(stop)?.line ?? body.firstChild);
}

function isWanted(record) {
  const { model, fallback, upstream, key, project, status, end, code, id } = record;
  const text = [model, fallback, upstream, key, project, status, end, code, id]
    .join(" ")
    .toLowerCase();
  const words = the("find").value.toLowerCase().split(/\s+/);
  return (
    words.every((word) => text.includes(word)) &&
    (!the("only-cut").checked || isCut(record)) &&
    (!the("only-bad").checked || isBad(record))
  );
}

// Figures over the list

function figures(all) {
  const cut = all.filter(isCut);
  const bad = all.filter(isBad).length;
  const leftOut = sum(cut, (record) => record.tokens_before - record.tokens);
  return [
    ["Running", all.filter((record) => record.end === "open").length, ""],
    ["Shown", all.length, all.length < SHOWN ? "all there are" : "the newest"],
    ["Cut to fit", percent(cut.length, all.length), `${brief(leftOut)} tokens left out`],
    ["Failed", bad, bad ? percent(bad, all.length) : ""],
    ["Cost", ...costs(all)],
  ];
}

function costs(all) {
  const used = all.filter((record) => record.usage);
  const unpriced = used.filter((record) => record.cost === null).length;
  const cost = sum(used, (record) => record.cost ?? 0);
  if (!unpriced) return [money(cost), "of those shown"];
  return [unpriced === used.length ? UNKNOWN : money(cost), `${unpriced} without a price`];
}

const figure = ([title, value, beside]) =>
  el("div", el("dt", title), el("dd", el("strong", value), " ", el("span", beside)));

// The table

function frame() {
  const caption =
    "The last requests, the newest first. Arrow keys go from one to the next, Enter opens it.";
  const body = el("tbody", {
    id: "rows",
    role: "rowgroup",
    onkeydown: move,
    onclick: open,
    onfocusin: stay,
  });
  clear(the("list"));
  the("list").append(
    el("table.requests", { role: "table" }, el("caption.unseen", caption), headed(COLUMNS), body),
  );
  return body;
}

/** Let go of the rows of all but these. */
function drop(ids) {
  for (const [id, row] of rows) {
    if (ids.has(id)) continue;
    row.line.remove();
    rows.delete(id);
  }
}

/** The row of a request. Its first cell never changes, and so keeps the focus. */
function lineOf(record) {
  const shown = JSON.stringify([record, record.end === "open" && Math.floor(now())]);
  const row = rows.get(record.id) ?? { line: el("tr", { role: "row" }) };
  if (row.shown === shown) return row.line;
  const cells = COLUMNS.map(({ cell, kind }, place) => cellOf(cell(record), kind, place));
  if (row.shown) cells[0] = row.line.cells[0];
  for (const cell of cells) cell.classList.toggle("none", cell.textContent === UNKNOWN);
  while (row.line.cells.length > 1) row.line.lastChild.remove();
  row.line.append(...(row.shown ? cells.slice(1) : cells));
  row.shown = shown;
  rows.set(record.id, row);
  return row.line;
}

// Cells

function link({ id, time, model }) {
  const words = `${atTime(time)}, open this request to ${model || "no model"}`;
  const address = `#requests/${id}`;
  const title = atMoment(time);
  return el("a", { href: address, tabindex: -1, "aria-label": words, title }, atTime(time));
}

function model(record) {
  const { model, fallback, upstream } = record;
  if (isUnsent(record)) return named(model || UNKNOWN, "not sent");
  return fallback ? named(fallback, `for ${model}`) : named(model || UNKNOWN, upstream);
}

function fullness(record) {
  const { tokens: after, tokens_before: before, limit } = record;
  if (after === null || !limit) return UNKNOWN;
  const part = percent(after, limit);
  const cut = isCut(record) ? `, ${tokens(before - after)} tokens cut` : "";
  return [fill(record, `${part} of the limit${cut}`), el("span.share-of", part)];
}

function sizes({ tokens_before: before, tokens: after }) {
  if (before === after) return tokens(after);
  const arrow = el("span.arrow", { "aria-hidden": true }, " → ");
  return [tokens(before), arrow, el("span.unseen", " to "), el("b", tokens(after))];
}

/** What became of it, in words and with a mark of its kind. */
export function ending(record) {
  const { end, code, status, resent, dry_run: isDryRun } = record;
  if (end === "open") return el("span.state.runs", "running");
  const kind = isBad(record) ? "bad" : end === "client gone" ? "odd" : "good";
  const said = code ?? (end === "whole" || end === "refused" ? "" : end);
  const words = [isDryRun && "dry run", said, resent && "resent"].filter(Boolean).join(", ");
  const title = code ? `${end}: ${code}` : end;
  return el(
    `span.state.${kind}`,
    { title },
    el("b", status || UNKNOWN),
    words && el("span", words),
  );
}

const age = (record) => Math.max(0, now() - record.time);

function took(record) {
  return seconds(record.end === "open" ? age(record) : record.seconds);
}

// Keyboard and mouse

const STEPS = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };

function move(event) {
  if (!(event.key in STEPS) || event.ctrlKey || event.altKey || event.metaKey) return;
  const line = event.target.closest("tr");
  const lines = [...line.parentElement.children];
  const at = Math.min(lines.length - 1, Math.max(0, lines.indexOf(line) + STEPS[event.key]));
  lines[at].querySelector("a").focus();
  event.preventDefault();
}

/** The list is one stop of the tabulator; within it arrows go from row to row. */
function stopAt(line) {
  const body = line.parentElement;
  for (const link of body.querySelectorAll("a[tabindex='0']")) link.tabIndex = -1;
  line.querySelector("a").tabIndex = 0;
}

function stay(event) {
  const line = event.target.closest("tr");
  stop = [...rows].find(([, row]) => row.line === line)[0];
  stopAt(line);
}

/** A click anywhere in a row opens it, unless something was marked to be copied. */
function open(event) {
  if (event.target.closest("a") || getSelection().toString()) return;
  event.target.closest("tr").querySelector("a").click();
}

export function focusOn(id) {
  rows.get(id)?.line.querySelector("a").focus();
}

// Nothing

const noneLikeThat = () => el("p.empty", "No request is like that.");

function nothing() {
  const address = new URL("v1/chat/completions", document.baseURI).href;
  const lines = [
    `curl ${address} \\`,
    "  -H 'content-type: application/json' -H 'authorization: Bearer YOUR-KEY' \\",
    `  -d '{"model": "YOUR-MODEL", "messages": [{"role": "user", "content": "Hello?"}]}'`,
  ];
  return empty(
    "No request has come yet.",
    "Point a client at this gateway, or send one by hand:",
    lines.join("\n"),
    el("p", "It appears here as soon as it arrives."),
  );
}
