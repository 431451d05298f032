// Spending against its caps, and by day, key, model and project.

import { clear, el, empty, named, redraw, table, the } from "./dom.js";
import { columns, meter, share } from "./bars.js";
import { now } from "./asking.js";
import { UNKNOWN, amount, atMoment, brief, cents, largest, lasting } from "./words.js";
import { number, onDay, percent, portion, sum } from "./words.js";

const DAY = 86_400_000;

export const path = () => `brim/spending?days=${the("days").value}`;

export function take(told) {
  const minute = Math.floor(now() / 60);
  const isOpen = the("spent").querySelector("details")?.open;
  redraw(the("spent"), [told, minute], () => (told.has_accounts ? all(told) : noAccounts()));
  if (isOpen) the("spent").querySelector("details").open = true;
}

export const forget = () => clear(the("spent"));

function all(told) {
  const isPriced = told.by_day.some((day) => day.cost > 0);
  const worth = isPriced ? (row) => row.cost : (row) => row.input + row.output;
  const unit = isPriced ? "dollars" : "tokens";
  const left = number(told.left_out, "row");
  return [
    el("h2", "Caps"),
    told.caps.length ? caps(told.caps) : noCaps(),
    el("h2", isPriced ? "Dollars a day" : "Tokens a day"),
    days(told, worth, unit),
    ["key", "model", "project"].map((by) => sums(by, told[`by_${by}`], worth)),
    el("h2", "Keys"),
    table("Keys, the newest first", KEYS, told.keys),
    told.left_out > 0 && el("p.hint", `${left} more are left out here; brim cost has them all.`),
  ];
}

// Caps

const caps = (held) => table("Caps, the fullest first", CAPS, held);

const CAPS = [
  {
    title: "Of",
    kind: "wide-name",
    cell: ({ name, kind }) => (name ? named(name, kind) : "everything"),
  },
  { title: "Cap", cell: ({ cap }) => cap },
  { title: "Used", kind: "picture", cell: used },
  { title: "Spent", kind: "num", cell: (cap) => portion(cap.spent, cap.most, cap.unit) },
  {
    title: "Set aside",
    kind: "num",
    cell: ({ reserved, most, unit }) => (reserved ? portion(reserved, most, unit) : UNKNOWN),
  },
  { title: "Left", kind: "num", cell: (cap) => el("b", portion(left(cap), cap.most, cap.unit)) },
  { title: "Opens again", cell: opening },
];

function left({ most, spent, reserved }) {
  return Math.max(0, Number((most - spent - reserved).toFixed(6))); // sums of dollars are not exact
}

function used({ spent, reserved, most }) {
  const words = `${percent(spent, most)} spent, ${percent(reserved, most)} set aside`;
  const both = percent(spent + reserved, most);
  return el("div.used", meter(spent, reserved, most, words), el("span", both));
}

/** When it begins anew, to the minute. */
function opening({ opens }) {
  if (opens === null) return "never";
  const minutes = Math.ceil((opens - now()) / 60);
  return el("span", { title: atMoment(opens) }, `in ${lasting(60 * minutes)}`);
}

// Days

function days(told, worth, unit) {
  const found = new Map(told.by_day.map((day) => [day.on, day]));
  const every = datesFrom(told.since).map((iso) => ({
    iso,
    value: found.has(iso) ? worth(found.get(iso)) : 0,
  }));
  const most = largest(every, (day) => day.value);
  const total = amount(
    sum(every, (day) => day.value),
    unit,
  );
  const words = `${total} in ${number(every.length, "day")}, at most ${amount(most, unit)} in one`;
  const marked = [every[0], every[every.length >> 1], every.at(-1)];
  const newest = told.by_day.toReversed();
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
      el("summary", "As a table"),
      sumTable("Day", newest, worth, (row) => onDay(row.on)),
    ),
  );
}

/** Every day from one on until today, as the gateway counts them. */
function datesFrom(since) {
  const first = Date.parse(`${since}T00:00:00Z`);
  const number = Math.floor((now() * 1000 - first) / DAY) + 1;
  return Array.from({ length: Math.max(1, number) }, (_, place) =>
    new Date(first + place * DAY).toISOString().slice(0, 10),
  );
}

// Sums

function sums(by, rows, worth) {
  if (by === "project" && rows.every((row) => !row.on)) return [];
  const nothing = el("p.empty", "Nothing was spent in these days.");
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
  { title: "Made", cell: ({ created }) => (created ? atMoment(created) : UNKNOWN) },
  { title: "State", cell: life },
];

function life({ revoked }) {
  if (!revoked) return el("span.state.good", "lives");
  return el("span.state.odd", { title: atMoment(revoked) }, "revoked");
}

// Nothing

const noCaps = () =>
  empty(
    "Nothing is capped.",
    "A key gets its caps when it is made:",
    "brim keys add NAME --cap 5/day --cap 100/month",
  );

const noAccounts = () =>
  empty(
    "This gateway keeps no accounts.",
    "It asks for no keys, so it cannot tell who spends what. Make the first ones:",
    "brim keys add NAME --cap 5/day\nbrim keys add NAME --operator",
    el(
      "p",
      "What each request cost is among the ",
      el("a", { href: "#requests" }, "requests"),
      ".",
    ),
  );
