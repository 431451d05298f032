// Who changed which keys, caps and settings.

import { clear, el, redraw, table, the } from "./dom.js";
import { atMoment } from "./format.js";

export const path = "brim/audit?last=200";

export function update(data) {
  redraw(the("change-list"), data, () =>
    data.data.length
      ? table("Changes, the newest first", COLUMNS, data.data, "changes")
      : el("p.empty", "No changes have been recorded yet."),
  );
}

export const reset = () => clear(the("change-list"));

const COLUMNS = [
  { title: "Time", cell: ({ time }) => atMoment(time) },
  { title: "Who", cell: ({ actor }) => actor },
  { title: "Action", cell: ({ action }) => el("code", action) },
  { title: "What", kind: "words", cell: what },
];

function what({ subject, details }) {
  const { name, ...changed } = details;
  const parts = Object.entries(changed)
    .filter(([, value]) => isFilled(value))
    .map(([field, value]) => `${field.replaceAll("_", " ")}: ${shown(value)}`);
  return [el("b", name ?? subject), parts.length ? el("span.detail", parts.join("; ")) : null];
}

const isFilled = (value) => value !== null && value !== "" && value !== false && value?.length !== 0;

function shown(value) {
  if (Array.isArray(value)) return value.join(", ") || "none";
  if (value !== null && typeof value === "object") return `${shown(value.before)} → ${shown(value.after)}`;
  return value === null || value === "" ? "none" : String(value);
}
