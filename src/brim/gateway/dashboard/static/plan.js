// One request, opened: what it came to, and what was decided about each message. Sizes, not words.

import { clear, el, redraw, table, the } from "./dom.js";
import { remains, stack } from "./bars.js";
import { ending, isUnsent } from "./requests.js";
import { atMoment, largest, money, number, percent, seconds, sum, tokens } from "./words.js";

const MOST_LINES = 1_000;
const FEW = 40;

/** Draw a request into the dialog. */
export function draw(request, close) {
  const dialog = the("opened");
  const top = dialog.querySelector(".sheet")?.scrollTop ?? 0;
  const hadFocus = dialog.contains(document.activeElement);
  redraw(dialog, request, () => [
    heading(request.fallback ?? request.model, request.id, close),
    el("div.sheet", facts(request), request.plan ? plan(request) : noPlan(request)),
  ]);
  dialog.querySelector(".sheet").scrollTop = top;
  if (hadFocus) dialog.querySelector("button").focus();
}

/** Say in the dialog why there is nothing to see. */
export function say(id, words, close) {
  clear(the("opened"));
  the("opened").append(heading("", id, close), el("div.sheet", el("p.empty", words)));
}

function heading(title, id, close) {
  const key = el("kbd", { "aria-hidden": true }, "Esc");
  return el(
    "header",
    el("div", el("h2", { id: "opened-title" }, title || "Request"), el("code", id)),
    el("button", { type: "button", onclick: close }, "Close", key),
  );
}

// What it came to

function facts(request) {
  const { model, fallback, path, streamed } = request;
  const known = [
    ["End", ending(request)],
    ["Came", atMoment(request.time)],
    ["Key", request.key],
    ["Project", request.project],
    ["Model", fallback ? `${fallback}, for ${model}` : model],
    ["Upstream", isUnsent(request) ? "not sent" : request.upstream],
    ["Path", streamed ? `${path}, streamed` : path],
    ["Policy", request.policy],
    ["Tokens", sizes(request)],
    ...used(request),
    ["First byte", request.first_byte === null ? null : seconds(request.first_byte)],
    ["Took", request.end === "open" ? null : seconds(request.seconds)],
    ["Resent", request.resent ? "smaller, after a refusal" : null],
  ];
  const there = known.filter(([, value]) => value);
  return el(
    "dl.facts",
    there.map(([name, value]) => el("div", el("dt", name), el("dd", value))),
  );
}

function sizes(request) {
  const { tokens_before: before, tokens: after, count } = request;
  if (after === null) return null;
  const sent = `${tokens(after)} ${isUnsent(request) ? "would be sent" : "sent"} (${count})`;
  return before === after ? sent : `${tokens(before)} came, ${sent}`;
}

function used({ usage, cost }) {
  if (!usage) return [];
  const { input, cached, output, counted } = usage;
  const both = `${tokens(input)} in, ${tokens(output)} out`;
  return [
    ["Used", counted ? `${both}, by brim’s count` : both],
    ["Cached", cached ? `${tokens(cached)}, ${percent(cached, input)} of the input` : null],
    ["Cost", cost === null ? "no price known" : money(cost)],
  ];
}

function noPlan(request) {
  const words =
    request.tokens === null
      ? "Nothing was decided about its messages: it did not come that far, or was not counted."
      : "What was decided about its messages is not remembered any more.";
  return el("p.empty", words);
}

// The plan

function plan(request) {
  const { decisions, notes, warnings } = request.plan;
  return [
    el("h3", "The window"),
    windows(request),
    warnings.length
      ? el(
          "ul.warnings",
          warnings.map((words) => el("li", words)),
        )
      : null,
    el("h3", number(decisions.length, "message")),
    messages(decisions),
    notes.map(({ at, tokens: size }) =>
      el("p.hint", `At message ${at} a note of ${tokens(size)} tokens says what is missing.`),
    ),
  ];
}

/** The window as the request came and as it went out, on one scale. */
function windows(request) {
  const { limit, tokens_before: before, tokens: after, plan } = request;
  const isKnown = limit !== null;
  const came = cameIn(request);
  const went = [...wentOut(request), ...(isKnown ? keptFree(request) : [])];
  const scale = Math.max(before, after, isKnown ? plan.budget.window : 1);
  const line = (title, parts, size, words) =>
    el("div.line", el("span", title), stack(parts, scale, limit, words), el("b", tokens(size)));
  const gone = `Came in: ${tokens(before)} tokens, ${tokens(before - after)} of them too many`;
  const out = isUnsent(request) ? "Would go out" : "Went out";
  const left = `${out}: ${tokens(after)} tokens`;
  return el(
    "figure.windows",
    line("Came in", came, before, gone),
    line(out, went, after, isKnown ? `${left} of a limit of ${tokens(limit)}` : left),
    el("figcaption", legend([...came, ...went]), el("p", reckoned(request))),
  );
}

function reckoned({ limit, plan: { budget } }) {
  if (limit === null) return "Nobody knows this model’s window, so there is no limit.";
  const less = `less ${tokens(budget.reply)} for the answer and ${tokens(budget.margin)} margin`;
  return `Window ${tokens(budget.window)}, ${less}: limit ${tokens(limit)}.`;
}

function cameIn({ tokens_before: all, plan: { decisions } }) {
  const frame = all - sum(decisions, (each) => each.before);
  const parts = decisions.flatMap(({ outcome, before, after }) =>
    outcome === "kept"
      ? [{ kind: "kept", size: before }]
      : [
          { kind: "edited", size: Math.min(before, after) },
          { kind: "cut", size: before - after },
        ],
  );
  return [{ kind: "frame", size: frame }, ...parts];
}

function wentOut({ tokens: all, plan: { decisions, notes } }) {
  const sized = sum(decisions, (each) => each.after) + sum(notes, (note) => note.tokens);
  const parts = decisions.map(({ index, outcome, after }) => ({
    at: index,
    kind: outcome === "kept" ? "kept" : "edited",
    size: after,
  }));
  const noted = notes.map(({ at, tokens }) => ({ at: at - 0.5, kind: "note", size: tokens }));
  const ordered = [...parts, ...noted].sort((one, other) => one.at - other.at);
  return [{ kind: "frame", size: all - sized }, ...ordered];
}

const keptFree = ({ limit, tokens, plan: { budget } }) => [
  { kind: "space", size: limit - tokens },
  { kind: "margin", size: budget.margin },
  { kind: "reply", size: budget.reply },
];

const KINDS = {
  frame: "tools and framing",
  kept: "kept as it was",
  edited: "shortened",
  cut: "cut",
  note: "note at a gap",
  margin: "margin",
  reply: "for the answer",
};

function legend(parts) {
  const there = new Set(parts.filter((part) => part.size > 0).map((part) => part.kind));
  const entries = Object.entries(KINDS).filter(([kind]) => there.has(kind));
  const swatch = (kind) => el(`i.swatch.${kind}`, { "aria-hidden": true });
  return el(
    "ul.legend",
    entries.map(([kind, words]) => el("li", swatch(kind), words)),
  );
}

// Messages

function messages(decisions) {
  const runs = decisions.length > FEW ? inRuns(decisions) : decisions.map(alone);
  const most = largest(runs, (run) => run.before);
  const size = (run) => remains(run.before, run.after, most);
  const columns = [...COLUMNS, { title: "Size", kind: "picture", cell: size }, REASON];
  const rest = runs.length - MOST_LINES;
  return [
    runs.length < decisions.length && el("p.hint", "Neighbours of one outcome are in one line."),
    table("What was decided about each message", columns, runs.slice(0, MOST_LINES)),
    rest > 0 && el("p.hint", `And ${number(rest, "line")} more, in the JSON of this request.`),
  ];
}

const places = ({ first, last }) => (first === last ? String(first) : `${first}–${last}`);
const COLUMNS = [
  { title: "Message", kind: "num", cell: places },
  { title: "Role", cell: ({ roles }) => roles.join(", ") },
  { title: "Outcome", cell: ({ outcome }) => el(`span.outcome.${outcome}`, outcome) },
  { title: "Before", kind: "num", cell: ({ before }) => tokens(before) },
  { title: "After", kind: "num", cell: ({ after }) => tokens(after) },
];
const REASON = { title: "Reason", kind: "reason", cell: ({ reason }) => reason };

const alone = ({ index, role, ...rest }) => ({ ...rest, first: index, last: index, roles: [role] });

/** Neighbours that were dealt with in the same way, together. */
function inRuns(decisions) {
  const runs = [];
  for (const decision of decisions) {
    const run = runs.at(-1);
    if (run?.outcome === decision.outcome && run.reason === decision.reason) join(run, decision);
    else runs.push(alone(decision));
  }
  return runs;
}

function join(run, { index, role, before, after }) {
  run.last = index;
  run.before += before;
  run.after += after;
  if (!run.roles.includes(role)) run.roles.push(role);
}
