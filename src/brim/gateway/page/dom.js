// Elements from values. Text only ever becomes text: names come from clients.

const SVG = "http://www.w3.org/2000/svg";

/** An element with its attributes and what is in it; `on…` are listeners, null is left out. */
export function el(tag, attributes = {}, ...content) {
  return filled(document.createElement(tag), attributes, content);
}

export function svg(tag, attributes = {}, ...content) {
  return filled(document.createElementNS(SVG, tag), attributes, content);
}

function filled(element, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...content.flat(3).filter((each) => each !== null && each !== undefined));
  return element;
}

/** The element with this id. */
export const the = (id) => document.getElementById(id);

/** Columns are { title, cell(row), className, hidden } with cells that are text or elements. */
export function table(caption, columns, rows) {
  const head = columns.map((column) =>
    el("th", { scope: "col", role: "columnheader", class: column.className }, column.title));
  const lines = rows.map((row) => el("tr", { role: "row" }, columns.map((column, place) => place === 0
    ? el("th", { scope: "row", role: "rowheader", class: column.className }, column.cell(row))
    : el("td", { role: "cell", class: column.className, "data-title": column.title }, column.cell(row)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { role: "table" },
      el("caption", { class: "unseen" }, caption),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
      el("tbody", { role: "rowgroup" }, lines)));
}
