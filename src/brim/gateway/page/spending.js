// Spending against its caps, and by day, key, model and project.

import { el, table, the } from "./dom.js";
import { columns, meter, share } from "./bars.js";
import { now } from "./asking.js";
import { UNKNOWN, amount, atMoment, brief, lasting, money, number, onDay, percent } from "./words.js";

export const path = () => `brim/spending?days=${the("days").value}`;

export function take(told) {
  const shown = JSON.stringify(told) + Math.floor(now() / 60);
  if (the("spent").dataset.shows === shown) return;
  the("spent").dataset.shows = shown;
  const scrolled = scrollY;
  the("spent").replaceChildren(...(told.has_accounts ? all(told) : [noAccounts()]));
  scrollTo(scrollX, scrolled);
}

export const forget = () => {
  the("spent").replaceChildren();
  the("spent").dataset.shows = "";
};

function all(told) {
  const inMoney = told.by_day.some((day) => day.cost > 0) || !told.by_day.some((day) => day.input + day.output > 0);
  return [
    el("h2", {}, "Caps"), caps(told.caps),
    el("h2", {}, inMoney ? "Dollars a day" : "Tokens a day"), days(told, inMoney),
    ...["key", "model", "project"].flatMap((by) => sums(by, told[`by_${by}`], inMoney)),
    el("h2", {}, "Keys"), keys(told.keys),
    told.left_out ? el("p", { class: "hint" }, `${number(told.left_out, "row")} more are left out here; brim cost has them all.`) : null,
  ].filter(Boolean);
}

// Caps

function caps(held) {
  if (held.length === 0) {
    return el("div", { class: "empty" }, el("p", {}, el("strong", {}, "Nothing is capped."), " A key gets its caps when it is made:"),
      el("pre", { tabindex: "0" }, "brim keys add NAME --cap 5/day --cap 100/month"));
  }
  return table("Caps, the fullest first", [
    { title: "Of", className: "wide-name", cell: (cap) => [el("span", { class: "name" }, cap.name || "everything"), el("span", { class: "beside" }, cap.name ? cap.kind : "")] },
    { title: "Cap", cell: (cap) => cap.cap },
    { title: "Used", className: "picture", cell: (cap) => meter(cap.spent, cap.reserved, cap.most, `${percent(cap.spent, cap.most)} spent, ${percent(cap.reserved, cap.most)} set aside`) },
    { title: "", className: "num", cell: (cap) => el("span", { class: cap.spent + cap.reserved >= cap.most ? "state bad" : "" }, percent(cap.spent + cap.reserved, cap.most)) },
    { title: "Spent", className: "num", cell: (cap) => amount(cap.spent, cap.unit) },
    { title: "Set aside", className: "num", cell: (cap) => (cap.reserved ? amount(cap.reserved, cap.unit) : UNKNOWN) },
    { title: "Left", className: "num", cell: (cap) => el("b", {}, amount(Math.max(0, cap.most - cap.spent - cap.reserved), cap.unit)) },
    { title: "Opens again", cell: (cap) => (cap.opens === null ? "never" : el("span", { title: atMoment(cap.opens) }, `in ${lasting(cap.opens - now())}`)) },
  ], held);
}

// Days

function days(told, inMoney) {
  const found = new Map(told.by_day.map((day) => [day.on, day]));
  const every = datesFrom(told.since).map((iso) => ({ iso, day: found.get(iso), value: worth(found.get(iso), inMoney) }));
  const largest = Math.max(...every.map((day) => day.value), 0);
  const total = every.reduce((sum, day) => sum + day.value, 0);
  const unit = inMoney ? "dollars" : "tokens";
  const words = `${amount(total, unit)} in ${number(every.length, "day")}, at most ${amount(largest, unit)} in one`;
  return el("figure", { class: "days" },
    el("div", { class: "top-line" }, el("span", {}, amount(largest, unit)), el("strong", {}, words)),
    columns(every, largest, words),
    el("div", { class: "axis", "aria-hidden": "true" }, [every[0], every[Math.floor(every.length / 2)], every.at(-1)].map((day) => el("span", {}, onDay(day.iso)))),
    el("details", {}, el("summary", {}, "As a table"),
      table("Spending by day", sumColumns("Day", Math.max(largest, 0), inMoney, (row) => onDay(row.on)), [...told.by_day].reverse())));
}

function datesFrom(since) {
  const dates = [];
  const today = new Date(now() * 1000).toISOString().slice(0, 10);
  for (let at = Date.parse(`${since}T00:00:00Z`); dates.length < 400; at += 86_400_000) {
    dates.push(new Date(at).toISOString().slice(0, 10));
    if (dates.at(-1) >= today) break;
  }
  return dates;
}

const worth = (sums, inMoney) => (!sums ? 0 : inMoney ? sums.cost : sums.input + sums.output);

// Sums

function sums(by, rows, inMoney) {
  const title = `By ${by}`;
  if (by === "project" && rows.every((row) => !row.on)) return [];
  if (rows.length === 0) return [el("h2", {}, title), el("p", { class: "empty" }, "Nothing was spent in these days.")];
  const largest = Math.max(...rows.map((row) => worth(row, inMoney)));
  const first = by[0].toUpperCase() + by.slice(1);
  return [el("h2", {}, title), table(title, sumColumns(first, largest, inMoney, (row) => row.name || "none"), rows)];
}

function sumColumns(title, largest, inMoney, named) {
  return [
    { title, className: "wide-name", cell: (row) => el("span", { class: "name" }, named(row)) },
    { title: "Share", className: "picture", cell: (row) => share(worth(row, inMoney), largest) },
    { title: "Cost", className: "num", cell: (row) => el("b", {}, row.unpriced ? `at least ${money(row.cost)}` : money(row.cost)) },
    { title: "Requests", className: "num", cell: (row) => brief(row.requests) },
    { title: "Input", className: "num", cell: (row) => brief(row.input) },
    { title: "Cached", className: "num", cell: (row) => (row.input ? percent(row.cached, row.input) : UNKNOWN) },
    { title: "Output", className: "num", cell: (row) => brief(row.output) },
    { title: "Presumed", className: "num", cell: (row) => (row.presumed ? brief(row.presumed) : UNKNOWN) },
  ];
}

// Keys

function keys(given) {
  return table("Keys, the newest first", [
    { title: "Name", className: "wide-name", cell: (key) => [el("span", { class: "name" }, key.name), el("span", { class: "beside" }, key.operator ? "operator" : key.project)] },
    { title: "Caps", cell: (key) => key.caps.join(", ") || UNKNOWN },
    { title: "Made", cell: (key) => (key.created ? atMoment(key.created) : UNKNOWN) },
    { title: "State", cell: (key) => (key.revoked ? el("span", { class: "state odd", title: atMoment(key.revoked) }, "revoked") : el("span", { class: "state good" }, "lives")) },
  ], given);
}

const noAccounts = () => el("div", { class: "empty" },
  el("p", {}, el("strong", {}, "This gateway keeps no accounts."), " It asks for no keys, so it cannot tell who spends what. Make the first key, and start it again:"),
  el("pre", { tabindex: "0" }, "brim keys add NAME --cap 5/day"),
  el("p", {}, "What each request cost is among the ", el("a", { href: "#requests" }, "requests"), "."));
