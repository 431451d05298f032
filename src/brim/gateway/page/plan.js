// One request, opened: what it came to, and what was decided about each message. Sizes, not words.

import { el, table, the } from "./dom.js";
import { share, stack } from "./bars.js";
import { ending } from "./requests.js";
import { atMoment, money, number, percent, seconds, tokens } from "./words.js";

const MOST_LINES = 1_000;
const FEW = 40;

/** Draw a request into the dialog. */
export function draw(request, close) {
  const shown = JSON.stringify(request);
  const dialog = the("opened");
  if (dialog.dataset.shows === shown) return;
  dialog.dataset.shows = shown;
  const top = dialog.querySelector(".sheet")?.scrollTop ?? 0;
  const hadFocus = dialog.contains(document.activeElement);
  dialog.replaceChildren(heading(request.fallback ?? request.model, request.id, close),
    el("div", { class: "sheet" }, facts(request), request.plan ? plan(request) : noPlan(request)));
  dialog.querySelector(".sheet").scrollTop = top;
  if (hadFocus) dialog.querySelector("button").focus();
}

/** Say in the dialog why there is nothing to see. */
export function say(id, words, close) {
  the("opened").dataset.shows = "";
  the("opened").replaceChildren(heading("Request", id, close), el("div", { class: "sheet" }, el("p", { class: "empty" }, words)));
}

const heading = (title, id, close) => el("header", {},
  el("div", {}, el("h2", { id: "opened-title" }, title || "Request"), el("code", {}, id)),
  el("button", { type: "button", onclick: close }, "Close", el("kbd", { "aria-hidden": "true" }, "Esc")));

function facts(request) {
  const usage = request.usage;
  const known = [
    ["End", ending(request)],
    ["Came", atMoment(request.time)],
    ["Key", request.key],
    ["Project", request.project],
    ["Model", request.fallback ? `${request.fallback}, for ${request.model}` : request.model],
    ["Upstream", request.upstream],
    ["Path", request.path + (request.streamed ? ", streamed" : "")],
    ["Policy", request.policy],
    ["Tokens", sent(request)],
    ["Used", usage && `${tokens(usage.input)} in, ${tokens(usage.output)} out${usage.counted ? ", by brim’s count" : ""}`],
    ["Cached", usage?.cached ? `${tokens(usage.cached)}, ${percent(usage.cached, usage.input)} of the input` : null],
    ["Cost", usage ? (request.cost === null ? "no price known" : money(request.cost)) : null],
    ["First byte", request.first_byte === null ? null : seconds(request.first_byte)],
    ["Took", request.end === "open" ? null : seconds(request.seconds)],
    ["Resent", request.resent ? "smaller, after a refusal" : null],
  ];
  return el("dl", { class: "facts" }, known.filter(([, value]) => value).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function sent({ tokens_before: before, tokens: after, count }) {
  if (after === null) return null;
  return `${before === after ? "" : `${tokens(before)} came, `}${tokens(after)} sent (${count})`;
}

const noPlan = (request) => el("p", { class: "empty" }, request.tokens === null
  ? "Nothing was decided about its messages: it did not come that far, or it was passed on uncounted."
  : "What was decided about its messages is not remembered any more.");

// The plan

function plan(request) {
  const { decisions, notes, warnings, budget } = request.plan;
  return [
    el("h3", {}, "The window"),
    windows(request),
    warnings.length ? el("ul", { class: "warnings" }, warnings.map((words) => el("li", {}, words))) : null,
    el("h3", {}, number(decisions.length, "message")),
    messages(decisions, notes, budget),
  ];
}

function windows(request) {
  const { decisions, notes, budget } = request.plan;
  const before = sum(decisions, "before"), after = sum(decisions, "after"), noted = sum(notes, "tokens");
  const frame = Math.max(0, request.tokens_before - before);
  const isKnown = request.limit !== null;
  const came = [{ kind: "frame", size: frame }, ...decisions.flatMap(cameAs)];
  const went = [{ kind: "frame", size: Math.max(0, request.tokens - after - noted) }, ...wentAs(decisions, notes)];
  const kept = isKnown ? [{ kind: "space", size: Math.max(0, request.limit - request.tokens) }, { kind: "margin", size: budget.margin }, { kind: "reply", size: budget.reply }] : [];
  const scale = Math.max(request.tokens_before, isKnown ? budget.window : 0, 1);
  const marks = isKnown ? [request.limit] : [];
  const gone = request.tokens_before - request.tokens;
  return el("figure", { class: "windows" },
    el("div", { class: "line" }, el("span", {}, "Came in"), stack(came, scale, marks, `Came in: ${tokens(request.tokens_before)} tokens, ${tokens(gone)} of them too many`), el("b", {}, tokens(request.tokens_before))),
    el("div", { class: "line" }, el("span", {}, "Went out"), stack([...went, ...kept], scale, marks, `Went out: ${tokens(request.tokens)} tokens${isKnown ? ` of a limit of ${tokens(request.limit)}` : ""}`), el("b", {}, tokens(request.tokens))),
    el("figcaption", {}, legend([...came, ...went, ...kept]), isKnown
      ? el("p", {}, `Window ${tokens(budget.window)}, less ${tokens(budget.reply)} for the answer and ${tokens(budget.margin)} margin: limit ${tokens(request.limit)}.`)
      : el("p", {}, "Nobody knows this model’s window, so there is no limit.")));
}

const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

function cameAs({ fate, before, after }) {
  if (fate === "kept") return [{ kind: "kept", size: before }];
  return [{ kind: "edited", size: Math.min(before, after) }, { kind: "cut", size: Math.max(0, before - after) }];
}

function wentAs(decisions, notes) {
  const parts = [];
  const noted = new Map(notes.map((note) => [note.at, note.tokens]));
  decisions.forEach(({ index, fate, after }) => {
    if (noted.has(index)) parts.push({ kind: "note", size: noted.get(index) });
    parts.push({ kind: fate === "kept" ? "kept" : "edited", size: after });
  });
  return parts;
}

const KINDS = [
  ["frame", "tools and framing"], ["kept", "kept as it was"], ["edited", "shortened"], ["cut", "cut"],
  ["note", "note at a gap"], ["margin", "margin"], ["reply", "for the answer"],
];

function legend(parts) {
  const there = new Set(parts.filter((part) => part.size > 0).map((part) => part.kind));
  return el("ul", { class: "legend" }, KINDS.filter(([kind]) => there.has(kind)).map(([kind, words]) =>
    el("li", {}, el("i", { class: `swatch ${kind}`, "aria-hidden": "true" }), words)));
}

// Messages

function messages(decisions, notes) {
  const runs = decisions.length > FEW ? inRuns(decisions) : decisions.map(alone);
  const largest = Math.max(...runs.map((run) => run.before), 1);
  const columns = [
    { title: "Message", className: "num", cell: (run) => (run.first === run.last ? String(run.first) : `${run.first}–${run.last}`) },
    { title: "Role", cell: (run) => run.roles.join(", ") },
    { title: "Fate", cell: (run) => el("span", { class: `fate ${run.fate}` }, run.fate) },
    { title: "Before", className: "num", cell: (run) => tokens(run.before) },
    { title: "After", className: "num", cell: (run) => (run.fate === "kept" ? tokens(run.after) : el("b", {}, tokens(run.after))) },
    { title: "Size", className: "picture", cell: (run) => share(run.before, largest) },
    { title: "Reason", className: "reason", cell: (run) => run.reason },
  ];
  const rest = runs.length - MOST_LINES;
  return [
    runs.length < decisions.length ? el("p", { class: "hint" }, "Neighbours of one fate are in one line.") : null,
    table("What was decided about each message", columns, runs.slice(0, MOST_LINES)),
    rest > 0 ? el("p", { class: "hint" }, `And ${number(rest, "line")} more, in the JSON of this request.`) : null,
    notes.length ? el("p", { class: "hint" }, notes.map((note) => `At message ${note.at} a note of ${tokens(note.tokens)} tokens says what is missing. `)) : null,
  ];
}

const alone = (decision) => ({ ...decision, first: decision.index, last: decision.index, roles: [decision.role] });

function inRuns(decisions) {
  const runs = [];
  for (const decision of decisions) {
    const last = runs.at(-1);
    if (last && last.fate === decision.fate && last.reason === decision.reason) {
      last.last = decision.index;
      last.before += decision.before;
      last.after += decision.after;
      if (!last.roles.includes(decision.role)) last.roles.push(decision.role);
    } else runs.push(alone(decision));
  }
  return runs;
}

