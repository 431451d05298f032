// One request: its cost and the decision for each message. Sizes only, never content.

import { clear, el, redraw, table, the } from "./dom.js";
import { remains, stack } from "./bars.js";
import { ending, isUnsent } from "./requests.js";
import { atMoment, largest, money, number, percent, seconds, sum, tokens } from "./format.js";

const MAX_ROWS = 1_000;
const FEW = 40;

/** Draw a request into the dialog. */
export function draw(request, close) {
  const dialog = the("request");
  const top = dialog.querySelector(".sheet")?.scrollTop ?? 0;
  const hadFocus = dialog.contains(document.activeElement);
  redraw(dialog, request, () => [
    heading(request.fallback ?? request.model, request.id, close),
    el("div.sheet", request.reason && why(request), facts(request), request.plan ? plan(request) : noPlan(request)),
  ]);
  dialog.querySelector(".sheet").scrollTop = top;
  if (hadFocus) dialog.querySelector("button").focus();
}

/** Show a message in the dialog instead of a request. */
export function showMessage(id, words, close) {
  clear(the("request"));
  the("request").append(heading("", id, close), el("div.sheet", el("p.empty", words)));
}

function heading(title, id, close) {
  const key = el("kbd", { "aria-hidden": true }, "Esc");
  return el(
    "header",
    el("div", el("h2", { id: "request-title" }, title || "Request"), el("code", id)),
    el("button", { type: "button", onclick: close }, "Close", key),
  );
}

const why = ({ reason, end }) =>
  el(`p.why.${end === "client_disconnected" ? "odd" : "bad"}`, el("strong", "Why: "), reason);

// Facts

function facts(request) {
  const { model, fallback, path, streamed } = request;
  const known = [
    ["Result", ending(request)],
    ["Time", atMoment(request.time)],
    ["Key", request.key],
    ["Project", request.project],
    ["Model", fallback ? `${fallback}, for ${model}` : model],
    ["Upstream", isUnsent(request) ? "not sent" : request.upstream],
    ["Path", streamed ? `${path}, streamed` : path],
    ["Policy", request.policy],
    ["Tokens", sizes(request)],
    ...used(request),
    ["First byte", request.first_byte === null ? null : seconds(request.first_byte)],
    ["Duration", request.end === "open" ? null : seconds(request.seconds)],
    ["Resent", request.resent ? "shorter, after a context-length error" : null],
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
  return before === after ? sent : `${tokens(before)} received, ${sent}`;
}

function used({ usage, cost }) {
  if (!usage) return [];
  const { input, cached, output, estimated } = usage;
  const both = `${tokens(input)} in, ${tokens(output)} out`;
  return [
    ["Used", estimated ? `${both} (estimated)` : both],
    ["Cached", cached ? `${tokens(cached)}, ${percent(cached, input)} of the input` : null],
    ["Cost", cost === null ? "unknown price" : money(cost)],
  ];
}

function noPlan(request) {
  const words =
    request.tokens === null
      ? "There are no decisions: the request was rejected earlier, or was not counted."
      : "The gateway no longer has the decisions for this request.";
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
      el("p.hint", `A note of ${tokens(size)} tokens before message ${at} says what was trimmed.`),
    ),
  ];
}

/** The context window as received and as sent, on one scale. */
function windows(request) {
  const { limit, tokens_before: before, tokens: after, plan } = request;
  const isKnown = limit !== null;
  const came = cameIn(request);
  const went = [...wentOut(request), ...(isKnown ? keptFree(request) : [])];
  const scale = Math.max(before, after, isKnown ? plan.budget.window : 1);
  const line = (title, parts, size, words) =>
    el("div.line", el("span", title), stack(parts, scale, limit, words), el("b", tokens(size)));
  const gone = `Received: ${tokens(before)} tokens, ${tokens(before - after)} of them trimmed`;
  const out = isUnsent(request) ? "Would be sent" : "Sent";
  const left = `${out}: ${tokens(after)} tokens`;
  return el(
    "figure.windows",
    line("Received", came, before, gone),
    line(out, went, after, isKnown ? `${left} of a limit of ${tokens(limit)}` : left),
    el("figcaption", legend([...came, ...went]), el("p", describeLimit(request))),
  );
}

function describeLimit({ limit, plan: { budget } }) {
  if (limit === null) return "The context window of this model is unknown, so there is no limit.";
  const less = `minus ${tokens(budget.reply)} for the reply and ${tokens(budget.margin)} margin`;
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
  kept: "kept",
  edited: "shortened",
  cut: "trimmed",
  note: "note about trimmed messages",
  margin: "margin",
  reply: "reserved for the reply",
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
  const runs = decisions.length > FEW ? groupRuns(decisions) : decisions.map(toRun);
  const most = largest(runs, (run) => run.before);
  const size = (run) => remains(run.before, run.after, most);
  const columns = [...COLUMNS, { title: "Size", kind: "picture", cell: size }, REASON];
  const rest = runs.length - MAX_ROWS;
  return [
    runs.length < decisions.length && el("p.hint", "Consecutive messages with the same decision share a row."),
    table("Decisions", columns, runs.slice(0, MAX_ROWS)),
    rest > 0 && el("p.hint", `${number(rest, "more row")} in the JSON of this request.`),
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

const toRun = ({ index, role, ...rest }) => ({ ...rest, first: index, last: index, roles: [role] });

/** Merge consecutive messages with the same decision. */
function groupRuns(decisions) {
  const runs = [];
  for (const decision of decisions) {
    const run = runs.at(-1);
    if (run?.outcome === decision.outcome && run.reason === decision.reason) join(run, decision);
    else runs.push(toRun(decision));
  }
  return runs;
}

function join(run, { index, role, before, after }) {
  run.last = index;
  run.before += before;
  run.after += after;
  if (!run.roles.includes(role)) run.roles.push(role);
}
