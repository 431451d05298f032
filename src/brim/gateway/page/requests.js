// The list of requests: rows are kept and mended in place, so that nothing moves under the hand.

import { el, the } from "./dom.js";
import { fill } from "./bars.js";
import { now } from "./asking.js";
import { UNKNOWN, atMoment, atTime, brief, cuts, money, number, percent, seconds, tokens } from "./words.js";

const SHOWN = 100;
const LOST = 10;
const BAD = new Set(["failed", "upstream broke", "stopped", "refused"]);
const TITLES = [
  ["Came", "time"], ["Model", "model"], ["Key", "by"], ["Window", "window"], ["Tokens", "size num"],
  ["Limit", "most num"], ["Cut", "cut"], ["End", "end"], ["Took", "took num"], ["Cost", "cost num"],
];

export const path = `brim/requests?last=${SHOWN}`;
const known = new Map();
const rows = new Map();
let polls = 0;

/** Take in what one gateway knows. Of several behind one address, all that were heard are kept. */
export function take(answer) {
  polls += 1;
  for (const record of answer.data ?? []) known.set(record.id, { record, heard: polls });
  const all = [...known.values()].sort((one, other) => other.record.time - one.record.time);
  all.forEach(({ record, heard }, place) => {
    const isLost = record.end === "open" && heard < polls - LOST;
    if (place >= SHOWN || isLost) known.delete(record.id);
  });
  show();
}

export function forget() {
  known.clear();
  rows.clear();
  the("list").replaceChildren();
}

export function show() {
  const all = [...known.values()].map(({ record }) => record).sort((one, other) => other.time - one.time);
  const wanted = all.filter(isWanted);
  figures(all);
  if (wanted.length === 0) {
    rows.clear();
    const empty = all.length ? el("p", { class: "empty" }, "No request is like that.") : nothing();
    if (the("list").dataset.shows !== empty.textContent) the("list").replaceChildren(empty);
    the("list").dataset.shows = empty.textContent;
    return;
  }
  the("list").dataset.shows = "";
  const body = the("rows") ?? frame();
  for (const [id, row] of rows) if (!wanted.some((record) => record.id === id)) { row.line.remove(); rows.delete(id); }
  wanted.forEach((record, place) => {
    const line = lineOf(record);
    if (body.children[place] !== line) body.insertBefore(line, body.children[place] ?? null);
  });
}

function isWanted(record) {
  const words = the("find").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const text = [record.model, record.fallback, record.upstream, record.key, record.project, record.status, record.end, record.code, record.id]
    .filter(Boolean).join(" ").toLowerCase();
  return words.every((word) => text.includes(word))
    && (!the("only-cut").checked || Object.keys(record.cut ?? {}).length > 0)
    && (!the("only-bad").checked || isBad(record));
}

export const isBad = (record) => record.status >= 400 || BAD.has(record.end);

// Figures over the list

function figures(all) {
  const running = all.filter((record) => record.end === "open").length;
  const cut = all.filter((record) => Object.keys(record.cut ?? {}).length > 0);
  const leftOut = cut.reduce((sum, record) => sum + Math.max(0, record.tokens_before - record.tokens), 0);
  const bad = all.filter(isBad).length;
  const priced = all.filter((record) => typeof record.cost === "number");
  const unpriced = all.filter((record) => record.usage && typeof record.cost !== "number").length;
  const cost = priced.reduce((sum, record) => sum + record.cost, 0);
  const facts = [
    ["Running", String(running), ""],
    ["Shown", String(all.length), all.length >= SHOWN ? "the newest" : "all there are"],
    ["Cut to fit", percent(cut.length, all.length), `${brief(leftOut)} tokens left out`],
    ["Failed", String(bad), percent(bad, all.length)],
    ["Cost", priced.length || !unpriced ? money(cost) : UNKNOWN, unpriced ? `${unpriced} without a price` : "of those shown"],
  ];
  const shown = JSON.stringify(facts);
  if (the("figures").dataset.shows === shown) return;
  the("figures").dataset.shows = shown;
  the("figures").replaceChildren(...facts.map(([title, value, beside]) =>
    el("div", {}, el("dt", {}, title), el("dd", {}, el("strong", {}, value), " ", el("span", {}, beside)))));
}

// The table

function frame() {
  const head = TITLES.map(([title, className]) => el("th", { scope: "col", role: "columnheader", class: className }, title));
  const body = el("tbody", { id: "rows", role: "rowgroup", onkeydown: move, onclick: open });
  the("list").replaceChildren(el("table", { class: "requests", role: "table" },
    el("caption", { class: "unseen" }, "The last requests, the newest first. Arrow keys go from one to the next, Enter opens it."),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), body));
  rows.clear();
  return body;
}

function lineOf(record) {
  const shown = JSON.stringify(record) + (record.end === "open" ? Math.floor(now()) : "");
  let row = rows.get(record.id);
  if (row?.shown === shown) return row.line;
  const cells = cellsOf(record).map((content, place) => [content].flat(2));
  if (row) {
    [...row.line.cells].slice(1).forEach((cell, place) => cell.replaceChildren(...cells[place + 1]));
  } else {
    row = { line: el("tr", { role: "row", "data-id": record.id }, cells.map((content, place) => place === 0
      ? el("th", { scope: "row", role: "rowheader", class: TITLES[0][1] }, content)
      : el("td", { role: "cell", class: TITLES[place][1], "data-title": TITLES[place][0] }, content))) };
    rows.set(record.id, row);
  }
  row.shown = shown;
  return row.line;
}

function cellsOf(record) {
  const hasWindow = record.tokens !== null && record.limit > 0;
  const cut = cuts(record.cut);
  return [
    el("a", { href: `#requests/${record.id}`, "aria-label": `${atTime(record.time)}, open this request to ${record.model || "no model"}`, title: atMoment(record.time) }, atTime(record.time)),
    [el("span", { class: "name" }, record.fallback ?? (record.model || UNKNOWN)),
      el("span", { class: "beside" }, record.fallback ? `for ${record.model}` : record.upstream ?? "")],
    [el("span", { class: "name" }, record.key ?? UNKNOWN), record.project ? el("span", { class: "beside" }, record.project) : null].filter(Boolean),
    hasWindow ? [fill(record, fullness(record, cut)), el("span", { class: "share-of" }, percent(record.tokens, record.limit))] : UNKNOWN,
    sizes(record),
    tokens(record.limit),
    cut || UNKNOWN,
    ending(record),
    seconds(record.end === "open" ? Math.max(0, now() - record.time) : record.seconds),
    record.usage || record.cost !== null ? money(record.cost) : UNKNOWN,
  ];
}

function sizes({ tokens_before: before, tokens: after }) {
  if (after === null || after === undefined) return UNKNOWN;
  if (before === after) return tokens(after);
  return [tokens(before), el("span", { class: "arrow", "aria-hidden": "true" }, " → "), el("span", { class: "unseen" }, " to "), el("b", {}, tokens(after))];
}

const fullness = (record, cut) =>
  `${percent(record.tokens, record.limit)} of the limit` + (cut ? `, ${tokens(record.tokens_before - record.tokens)} tokens cut` : "");

/** What became of it, in words and with a mark of its kind. */
export function ending(record) {
  if (record.end === "open") return el("span", { class: "state runs" }, "running");
  const words = record.end === "whole" || record.end === "refused" ? record.code ?? "" : record.code ?? record.end;
  const kind = isBad(record) ? "bad" : record.end === "client gone" ? "odd" : "good";
  const extra = record.resent ? " resent" : "";
  return el("span", { class: `state ${kind}`, title: `${record.end}${record.code ? `: ${record.code}` : ""}` },
    el("b", {}, String(record.status || UNKNOWN)), words || extra ? ` ${words}${extra}` : "");
}

// Keyboard and mouse

function move(event) {
  const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  const line = event.target.closest("tr");
  if (!(event.key in steps) || !line || event.ctrlKey || event.altKey || event.metaKey) return;
  const lines = [...line.parentElement.children];
  const at = Math.min(lines.length - 1, Math.max(0, lines.indexOf(line) + steps[event.key]));
  lines[at].querySelector("a").focus();
  event.preventDefault();
}

function open(event) {
  const line = event.target.closest("tr");
  if (line && !event.target.closest("a") && !getSelection().toString()) line.querySelector("a").click();
}

export function focusOn(id) {
  rows.get(id)?.line.querySelector("a").focus();
}

export const count = () => number(known.size, "request");

function nothing() {
  const address = new URL("v1/chat/completions", document.baseURI).href;
  return el("div", { class: "empty" },
    el("p", {}, el("strong", {}, "No request has come yet."), " Point a client at this gateway, or send one by hand:"),
    el("pre", { tabindex: "0" }, `curl ${address} \\\n  -H 'content-type: application/json' -H 'authorization: Bearer YOUR-KEY' \\\n  -d '{"model": "YOUR-MODEL", "messages": [{"role": "user", "content": "Hello?"}]}'`),
    el("p", {}, "It appears here as soon as it arrives."));
}
