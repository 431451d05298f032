// Elements from values. Text is never parsed as HTML: names come from clients.

import { UNKNOWN } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element, with classes after its tag: `el("p.hint", "Nothing yet.")`.
 *
 * Attributes may come first; `on…` are listeners. Null and false values are skipped.
 */
export function el(kind, ...given) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  const [attributes, content] = isPlain(given[0]) ? [given[0], given.slice(1)] : [{}, given];
  return filled(element, attributes, content);
}

export function svg(tag, attributes, ...content) {
  return filled(document.createElementNS(SVG, tag), attributes, content);
}

const isPlain = (value) => value !== null && value?.constructor === Object;

function filled(element, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...content.flat(3).filter((each) => each || each === 0));
  return element;
}

/** The element with this id. */
export const the = (id) => document.getElementById(id);

/** Draw again if the data has changed. */
export function redraw(place, data, draw) {
  const shown = JSON.stringify(data);
  if (place.dataset.shows === shown) return;
  place.dataset.shows = shown;
  place.replaceChildren(...[draw()].flat(3).filter(Boolean));
}

export function clear(place) {
  place.dataset.shows = "";
  place.replaceChildren();
}

/** An empty view: what is missing, why, and a command to run. */
export function empty(what, why, line, ...more) {
  return el(
    "div.empty",
    el("p", el("strong", what), " ", why),
    el("pre", { tabindex: 0 }, line),
    more,
  );
}

/** A name with a note. */
export const named = (name, note) => [
  el("span.name", { title: name }, name),
  note ? el("span.detail", note) : null,
];

/** A table of rows; a column is { title, cell, kind }, and a cell is text or elements. */
export function table(caption, columns, rows, kind = "") {
  const line = (row) =>
    el(
      "tr",
      { role: "row" },
      columns.map(({ cell, kind }, place) => cellOf(cell(row), kind, place)),
    );
  return el(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      { role: "table", class: kind },
      el("caption.visually-hidden", caption),
      tableHead(columns),
      el("tbody", { role: "rowgroup" }, rows.map(line)),
    ),
  );
}

// Explicit roles, because narrow screens change the display of tables.

export function tableHead(columns) {
  const headers = columns.map(({ title, kind = "" }) =>
    el("th", { scope: "col", role: "columnheader", class: kind }, title),
  );
  return el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, headers));
}

/** The first cell of a row is its header. */
export function cellOf(content, kind = "", place = 1) {
  const cell =
    place === 0
      ? el("th", { scope: "row", role: "rowheader", class: kind }, content)
      : el("td", { role: "cell", class: kind }, content);
  cell.classList.toggle("none", cell.textContent === UNKNOWN);
  return cell;
}
