// Spending: caps, and totals by day, key, model and project.

import { clear, el, empty, named, redraw, table, the } from "./dom.js";
import { columns, meter, share } from "./bars.js";
import { now } from "./api.js";
import { UNKNOWN, amount, atMoment, brief, cents, largest, lasting } from "./format.js";
import { number, onDay, percent, portion, sum } from "./format.js";

const DAY = 86_400_000;

export const path = () => `brim/spending?days=${the("days").value}`;

export function update(data) {
  const minute = Math.floor(now() / 60);
  const isOpen = the("spent").querySelector("details")?.open;
  redraw(the("spent"), [data, minute], () => (data.has_accounts ? sections(data) : noAccounts()));
  if (isOpen) the("spent").querySelector("details").open = true;
}

export const reset = () => clear(the("spent"));

function sections(data) {
  const isPriced = data.by_day.some((day) => day.cost > 0);
  const worth = isPriced ? (row) => row.cost : (row) => row.input + row.output;
  const unit = isPriced ? "dollars" : "tokens";
  const omitted = number(data.omitted, "row");
  return [
    el("h2", "Caps"),
    data.caps.length ? caps(data.caps) : noCaps(),
    el("h2", isPriced ? "Dollars per day" : "Tokens per day"),
    days(data, worth, unit),
    ["key", "model", "project"].map((by) => sums(by, data[`by_${by}`], worth)),
    el("h2", "Keys"),
    table("Keys, the newest first", KEYS, data.keys),
    data.omitted > 0 && el("p.hint", `${omitted} more are not shown. brim cost lists all of them.`),
  ];
}

// Caps

const caps = (rows) => table("Caps, the fullest first", CAPS, rows);

const CAPS = [
  {
    title: "Scope",
    kind: "wide-name",
    cell: ({ name, kind }) => (name ? named(name, kind) : "all keys"),
  },
  { title: "Cap", cell: ({ cap }) => cap },
  { title: "Used", kind: "picture", cell: used },
  { title: "Spent", kind: "num", cell: (cap) => portion(cap.spent, cap.limit, cap.unit) },
  {
    title: "Reserved",
    kind: "num",
    cell: ({ reserved, limit, unit }) => (reserved ? portion(reserved, limit, unit) : UNKNOWN),
  },
  { title: "Left", kind: "num", cell: (cap) => el("b", portion(left(cap), cap.limit, cap.unit)) },
  { title: "Resets", cell: resetTime },
];

function left({ limit, spent, reserved }) {
  return Math.max(0, Number((limit - spent - reserved).toFixed(6))); // sums of dollars are not exact
}

function used({ spent, reserved, limit }) {
  const words = `${percent(spent, limit)} spent, ${percent(reserved, limit)} reserved`;
  const both = percent(spent + reserved, limit);
  return el("div.used", meter(spent, reserved, limit, words), el("span", both));
}

/** Return when a cap resets, to the minute; a rate limit counts the last minute, or what runs. */
function resetTime({ resets, period }) {
  if (resets === null) return period === "total" ? "never" : "continuously";
  const minutes = Math.ceil((resets - now()) / 60);
  return el("span", { title: atMoment(resets) }, `in ${lasting(60 * minutes)}`);
}

// Days

function days(data, worth, unit) {
  const found = new Map(data.by_day.map((day) => [day.group, day]));
  const every = datesFrom(data.since).map((iso) => ({
    iso,
    value: found.has(iso) ? worth(found.get(iso)) : 0,
  }));
  const most = largest(every, (day) => day.value);
  const total = amount(
    sum(every, (day) => day.value),
    unit,
  );
  const words = `${total} in ${number(every.length, "day")}, highest day ${amount(most, unit)}`;
  const marked = [every[0], every[every.length >> 1], every.at(-1)];
  const newest = data.by_day.toReversed();
  return el(
    "figure.days",
    el("div.top-line", el("span", amount(most, unit)), el("strong", words)),
    columns(
      every.map((day) => day.value),
      most,
      words,
    ),
    el(
      "div.axis",
      { "aria-hidden": true },
      marked.map((day) => el("span", onDay(day.iso))),
    ),
    el(
      "details",
      el("summary", "Show as a table"),
      sumTable("Day", newest, worth, (row) => onDay(row.group)),
    ),
  );
}

/** Return every day since a date until today, in UTC. */
function datesFrom(since) {
  const first = Date.parse(`${since}T00:00:00Z`);
  const number = Math.floor((now() * 1000 - first) / DAY) + 1;
  return Array.from({ length: Math.max(1, number) }, (_, place) =>
    new Date(first + place * DAY).toISOString().slice(0, 10),
  );
}

// Sums

function sums(by, rows, worth) {
  if (by === "project" && rows.every((row) => !row.group)) return [];
  const nothing = el("p.empty", "No spending in this period.");
  const title = by[0].toUpperCase() + by.slice(1);
  const named = (row) => row.name || "none";
  return [el("h2", `By ${by}`), rows.length ? sumTable(title, rows, worth, named) : nothing];
}

function sumTable(title, rows, worth, called) {
  const all = sum(rows, worth);
  const columns = [
    { title, kind: "wide-name", cell: (row) => named(called(row)) },
    { title: "Share", kind: "picture", cell: (row) => share(worth(row), all) },
    { title: "Cost", kind: "num", cell: (row) => el("b", cost(row)) },
    { title: "Requests", kind: "num", cell: ({ requests }) => brief(requests) },
    { title: "Input", kind: "num", cell: ({ input }) => brief(input) },
    { title: "Cached", kind: "num", cell: ({ cached, input }) => percent(cached, input) },
    { title: "Output", kind: "num", cell: ({ output }) => brief(output) },
  ];
  if (rows.some((row) => row.presumed)) columns.push(PRESUMED);
  return table(`Spending by ${title.toLowerCase()}`, columns, rows, "sums");
}

const PRESUMED = { title: "Presumed", kind: "num", cell: ({ presumed }) => brief(presumed) };

const cost = (row) => (row.unpriced ? `at least ${cents(row.cost)}` : cents(row.cost));

// Keys

const KEYS = [
  {
    title: "Name",
    kind: "wide-name",
    cell: ({ name, operator, project }) => named(name, operator ? "operator" : project),
  },
  { title: "Caps", cell: ({ caps }) => caps.join(", ") || UNKNOWN },
  { title: "Created", cell: ({ created }) => (created ? atMoment(created) : UNKNOWN) },
  { title: "State", cell: keyState },
];

function keyState({ revoked }) {
  if (!revoked) return el("span.state.good", "active");
  return el("span.state.odd", { title: atMoment(revoked) }, "revoked");
}

// Empty lists

const noCaps = () =>
  empty(
    "There are no caps.",
    "Set caps when you create a key:",
    "brim keys add NAME --cap 5/day --cap 100/month",
  );

const noAccounts = () =>
  empty(
    "This gateway has no keys.",
    "Without keys it does not record spending. Create the first ones:",
    "brim keys add NAME --cap 5/day\nbrim keys add NAME --operator",
    el(
      "p",
      "The cost of each request is in the list of ",
      el("a", { href: "#requests" }, "requests"),
      ".",
    ),
  );
