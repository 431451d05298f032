// The list of requests. Rows are updated in place, so that nothing moves under the pointer.

import { cellOf, clear, el, empty, tableHead, named, redraw, the } from "./dom.js";
import { fill } from "./bars.js";
import { get, now } from "./api.js";
import { UNKNOWN, atMoment, atRecent, atTime, brief, money, outcomes, percent } from "./format.js";
import { seconds, sum, tokens } from "./format.js";

const MAX_ROWS = 100;
const DAY = 86_400;
/** Polls after which a running request that is no longer listed is removed. */
const MAX_MISSED = 10;
const UNAVAILABLE = new Set(["account_store_unavailable", "too_many_requests_at_once"]);
const FAILED = new Set(["failed", "upstream_failed", "stopped", "rejected"]);
const COLUMNS = [
  { title: "Time", kind: "time", cell: link },
  { title: "Model", kind: "model", cell: model },
  { title: "Key", kind: "by", cell: ({ key, project }) => named(key ?? UNKNOWN, project) },
  { title: "Window", kind: "window", cell: fullness },
  { title: "Tokens", kind: "size num", cell: sizes },
  { title: "Limit", kind: "limit-tokens num", cell: ({ limit }) => tokens(limit) },
  {
    title: "Trimmed",
    kind: "trimmed",
    cell: (record) => (isTrimmed(record) ? named(outcomes(record.trimmed)) : UNKNOWN),
  },
  { title: "Result", kind: "end", cell: ending },
  { title: "Duration", kind: "duration num", cell: duration },
  { title: "Cost", kind: "cost num", cell: ({ cost }) => money(cost) },
];

export const isLive = () => the("period").value === "live";

/** Live requests of one gateway, or the newest that match in its history. */
export const path = () => (isLive() ? `brim/requests?last=${MAX_ROWS}` : historyPath());

function historyPath(before = "") {
  const query = new URLSearchParams({ since: now() - Number(the("period").value), last: MAX_ROWS, q: the("filter").value });
  if (the("only-failed").checked) query.set("failed", "true");
  if (the("only-trimmed").checked) query.set("trimmed", "true");
  if (before) query.set("before", before);
  return `brim/history?${query}`;
}

/** Add the next page of the history. */
export async function more() {
  const data = await get(historyPath(older));
  older = data.next;
  hasMore = true;
  add(data);
}

const known = new Map();
const rows = new Map();
let polls = 0;
/** Where the next page of the history begins; null if there is none. */
let older = null;
/** Whether a further page was added, so that a poll must not go back to the first. */
let hasMore = false;
/** The request in the tab order: the last one that had the focus, else the newest. */
let tabStop = null;

/** Add what one gateway knows. Behind a load balancer, requests of all gateways are kept. */
export function update(data) {
  if (isLive() !== ("next" in data)) {
    if (!isLive() && !hasMore) older = data.next;
    add(data);
  }
}

function add(data) {
  polls += 1;
  for (const record of data.data) known.set(record.id, { record, seen: polls });
  newest().forEach(({ record, seen }, place) => {
    const isLost = record.end === "open" && seen < polls - MAX_MISSED;
    if ((isLive() && place >= MAX_ROWS) || isLost) known.delete(record.id);
  });
  show();
}

export function reset() {
  known.clear();
  rows.clear();
  tabStop = null;
  older = null;
  hasMore = false;
  the("more").hidden = true;
  clear(the("list"));
}

const newest = () => [...known.values()].sort((one, other) => other.record.time - one.record.time);

export const isFailed = (record) => record.status >= 400 || FAILED.has(record.end);
/** Whether no upstream got it: it was a dry run, or the gateway rejected it. */
export const isUnsent = ({ dry_run: isDryRun, end, code }) =>
  isDryRun || (code !== null && (end === "rejected" || UNAVAILABLE.has(code)));
const isTrimmed = (record) => Object.keys(record.trimmed ?? {}).length > 0;

/** Draw the list with the current filters. */
export function show() {
  the("more").hidden = isLive() || older === null;
  const all = newest().map(({ record }) => record);
  const wanted = all.filter(isWanted);
  redraw(the("figures"), figures(all), () => figures(all).map(figure));
  if (wanted.length === 0) {
    rows.clear();
    const isSearch = all.length > 0 || !isLive();
    return redraw(the("list"), isSearch, () => (isSearch ? noMatches() : noRequests()));
  }
  const body = the("rows") ?? frame();
  drop(new Set(wanted.map((record) => record.id)));
  wanted.forEach((record, place) => {
    const line = rowOf(record);
    if (body.children[place] !== line) body.insertBefore(line, body.children[place] ?? null);
  });
  stopAt(rows.get(tabStop)?.line ?? body.firstChild);
}

function isWanted(record) {
  const { model, alias, fallback, upstream, key, project, status, end, code, id } = record;
  const text = [model, alias, fallback, upstream, key, project, status, end, code, id]
    .join(" ")
    .toLowerCase();
  const words = the("filter").value.toLowerCase().split(/\s+/);
  return (
    words.every((word) => text.includes(word)) &&
    (!the("only-trimmed").checked || isTrimmed(record)) &&
    (!the("only-failed").checked || isFailed(record))
  );
}

// Figures over the list

function figures(all) {
  const trimmed = all.filter(isTrimmed);
  const failed = all.filter(isFailed).length;
  const saved = sum(trimmed, (record) => record.tokens_before - record.tokens);
  return [
    ["Running", all.filter((record) => record.end === "open").length, ""],
    ["Shown", all.length, isLive() ? (all.length < MAX_ROWS ? "all" : "newest") : older ? "newest" : "all"],
    ["Trimmed", percent(trimmed.length, all.length), `${brief(saved)} tokens saved`],
    ["Failed", failed, failed ? percent(failed, all.length) : ""],
    ["Cost", ...costs(all)],
  ];
}

function costs(all) {
  const used = all.filter((record) => record.usage);
  const unpriced = used.filter((record) => record.cost === null).length;
  const cost = sum(used, (record) => record.cost ?? 0);
  if (!unpriced) return [money(cost), "shown requests"];
  return [unpriced === used.length ? UNKNOWN : money(cost), `${unpriced} without a price`];
}

const figure = ([title, value, note]) =>
  el("div", el("dt", title), el("dd", el("strong", value), " ", el("span", note)));

// The table

function frame() {
  const caption =
    "Recent requests, the newest first. Use the arrow keys to move and Enter to open one.";
  const body = el("tbody", {
    id: "rows",
    role: "rowgroup",
    onkeydown: move,
    onclick: open,
    onfocusin: setTabStop,
  });
  clear(the("list"));
  the("list").append(
    el("table.requests", { role: "table" }, el("caption.visually-hidden", caption), tableHead(COLUMNS), body),
  );
  return body;
}

/** Remove all rows except these. */
function drop(ids) {
  for (const [id, row] of rows) {
    if (ids.has(id)) continue;
    row.line.remove();
    rows.delete(id);
  }
}

/** Return the row of a request. Its first cell never changes, so it keeps the focus. */
function rowOf(record) {
  const shown = JSON.stringify([record, record.end === "open" && Math.floor(now())]);
  const row = rows.get(record.id) ?? { line: el("tr", { role: "row" }) };
  if (row.shown === shown) return row.line;
  const cells = COLUMNS.map(({ cell, kind }, place) => cellOf(cell(record), kind, place));
  if (row.shown) cells[0] = row.line.cells[0];
  while (row.line.cells.length > 1) row.line.lastChild.remove();
  row.line.append(...(row.shown ? cells.slice(1) : cells));
  row.shown = shown;
  rows.set(record.id, row);
  return row.line;
}

// Cells

function link({ id, time, model }) {
  const words = `${atTime(time)}, open request for ${model || "no model"}`;
  const address = `#requests/${id}`;
  const title = atMoment(time);
  const shown = now() - time < DAY ? atTime(time) : atRecent(time);
  return el("a", { href: address, tabindex: -1, "aria-label": words, title }, shown);
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
  const saved = isTrimmed(record) ? `, ${tokens(before - after)} tokens trimmed` : "";
  return [fill(record, `${part} of the limit${saved}`), el("span.share-of", part)];
}

function sizes({ tokens_before: before, tokens: after }) {
  if (before === after) return tokens(after);
  const arrow = el("span.arrow", { "aria-hidden": true }, " → ");
  return [tokens(before), arrow, el("span.visually-hidden", " to "), el("b", tokens(after))];
}

/** Return how a request ended, with a mark. */
export function ending(record) {
  const { end, code, status, resent, dry_run: isDryRun } = record;
  if (end === "open") return el("span.state.runs", "running");
  const kind = isFailed(record) ? "bad" : end === "client_disconnected" ? "odd" : "good";
  const reason = code ?? (end === "completed" || end === "rejected" ? "" : end.replace("_", " "));
  const words = [isDryRun && "dry run", reason, resent && "resent"].filter(Boolean).join(", ");
  const title = record.reason ?? (code ? `${end}: ${code}` : end);
  return el(
    `span.state.${kind}`,
    { title },
    el("b", status || UNKNOWN),
    words && el("span", words),
  );
}

const age = (record) => Math.max(0, now() - record.time);

function duration(record) {
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

/** The list is one tab stop; arrow keys move between its rows. */
function stopAt(line) {
  const body = line.parentElement;
  for (const link of body.querySelectorAll("a[tabindex='0']")) link.tabIndex = -1;
  line.querySelector("a").tabIndex = 0;
}

function setTabStop(event) {
  const line = event.target.closest("tr");
  tabStop = [...rows].find(([, row]) => row.line === line)[0];
  stopAt(line);
}

/** Open a row by a click anywhere in it, unless text is selected. */
function open(event) {
  if (event.target.closest("a") || getSelection().toString()) return;
  event.target.closest("tr").querySelector("a").click();
}

export function focusOn(id) {
  rows.get(id)?.line.querySelector("a").focus();
}

// Empty lists

const noMatches = () => el("p.empty", "No matching requests.");

function noRequests() {
  const address = new URL("v1/chat/completions", document.baseURI).href;
  const lines = [
    `curl ${address} \\`,
    "  -H 'content-type: application/json' -H 'authorization: Bearer YOUR-KEY' \\",
    `  -d '{"model": "YOUR-MODEL", "messages": [{"role": "user", "content": "Hello?"}]}'`,
  ];
  return empty(
    "No requests yet.",
    "Point a client at this gateway, or send a request:",
    lines.join("\n"),
    el("p", "It appears here immediately."),
  );
}
