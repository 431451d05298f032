// Keys and caps: create, change, rotate and revoke them, each with a confirmation.

import { clear, el, empty, named, redraw, table, the } from "./dom.js";
import { get, key as signedIn, now, send } from "./api.js";
import { UNKNOWN, atDay, cents, number, percent } from "./format.js";

export const path = () => `brim/keys${the("all-keys").checked ? "?all=true" : ""}`;

let onChange = () => {};
let hasAccounts = true;

/** Call a function after each change. */
export function listen(listener) {
  onChange = listener;
}

export function update(data) {
  hasAccounts = data.has_accounts;
  the("add-key").hidden = the("cap-project").hidden = !hasAccounts;
  redraw(the("key-list"), data, () => (data.data.length ? table("Keys, the newest first", COLUMNS, data.data, "keys") : hasAccounts ? empty("There are no keys yet.", "Clients need one for every request. Add it here, or on the gateway's machine:", "brim keys add NAME") : noKeys()));
}

export const reset = () => clear(the("key-list"));

const COLUMNS = [
  { title: "Name", kind: "wide-name", cell: ({ name, project, operator }) => named(name, operator ? "operator" : project) },
  { title: "State", cell: state },
  { title: "Caps", kind: "words", cell: caps },
  { title: "Limits", kind: "words", cell: limits },
  { title: "Created", cell: ({ created }) => atDay(created) },
  { title: "Actions", kind: "actions", cell: actions },
];

function state({ revoked, expires }) {
  if (revoked !== null) return el("span.state.bad", "revoked");
  if (expires === null) return el("span.state.good", "active");
  return expires <= now() ? el("span.state.bad", "expired") : el("span.state.odd", `until ${atDay(expires)}`);
}

function caps({ caps, operator }) {
  if (operator) return UNKNOWN;
  if (!caps.length) return "none";
  return el("ul.caps", caps.map((cap) => el("li", `${cap.cap} `, el("span.detail", `${percent(cap.spent + cap.reserved, cap.limit)} used`))));
}

function limits({ models, note, labels }) {
  const parts = [models.length ? `models ${models.join(", ")}` : "", (labels ?? []).join(", "), note];
  return parts.filter(Boolean).join("; ") || UNKNOWN;
}

function actions(row) {
  if (row.revoked !== null) return UNKNOWN;
  const button = (label, work) =>
    el("button.small", { type: "button", "aria-label": `${label} ${row.name}`, onclick: () => work(row) }, label);
  return [!row.operator && button("Users", users), button("Edit", edit), button("Rotate", rotate), button("Revoke", revoke)];
}

const noKeys = () =>
  empty(
    "This gateway has no keys.",
    "Every client that can connect may use it. Create the first operator key on its machine:",
    "brim keys add me --operator",
    el("p", "From then on, every request needs a key, and keys are managed here."),
  );

// Dialogs

/** Open a dialog with fields and a button; `submit(values)` returns what to show, or nothing. */
function ask({ title, words, fields = [], action, isDangerous, submit }) {
  const dialog = the("form-dialog");
  const error = el("p.error", { role: "alert" });
  const close = () => dialog.close();
  const confirm = el(isDangerous ? "button.danger" : "button.primary", { type: "submit" }, action);
  const form = el(
    "form.card",
    { method: "dialog" },
    el("h2", { id: "form-title" }, title),
    words && el("p", words),
    fields.map(field),
    error,
    el("div.buttons", el("button", { type: "button", onclick: close }, "Cancel"), confirm),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    try {
      const shown = await submit(Object.fromEntries(new FormData(form)));
      if (shown) form.replaceChildren(...shown.flat(2).filter(Boolean), el("div.buttons", el("button.primary", { type: "button", onclick: close }, "Done")));
      else close();
      onChange();
    } catch (problem) {
      error.textContent = problem.message;
      confirm.disabled = false;
    }
  });
  clear(dialog);
  dialog.append(form);
  dialog.showModal();
}

function field({ name, label, value = "", hint, kind = "text", required }) {
  const id = `field-${name}`;
  if (kind === "checkbox") {
    return el("label.check", el("input", { type: "checkbox", name, id }), ` ${label}`);
  }
  const attributes = { id, name, value, required, autocomplete: "off", spellcheck: "false", "aria-describedby": hint ? `${id}-hint` : null };
  return el("div.field", el("label", { for: id }, label), el("input", { type: "text", ...attributes }), hint && el("p.hint", { id: `${id}-hint` }, hint));
}

const list = (text) => text.split(/[\n,;]+/).map((each) => each.trim()).filter(Boolean);
/** Caps may contain commas in numbers, so only semicolons separate them. */
const capList = (text) => text.split(";").map((each) => each.trim()).filter(Boolean);

const CAP_HINT = "5/day, 20/week, 100/month, 2M tokens/day, or 250 for all time; several separated by semicolons.";
const RULES = (row = { caps: [], user_caps: [], models: [], labels: [], note: "", expires: null }) => [
  { name: "caps", label: "Caps", value: row.caps.map(({ cap }) => cap).join("; "), hint: CAP_HINT },
  { name: "user_caps", label: "Caps of each end user", value: row.user_caps.join("; "), hint: "End users are named by the requests, or by tokens of the sign-in provider." },
  { name: "models", label: "Models", value: row.models.join(", "), hint: "Names or patterns such as gpt-4o*; empty for all models." },
  { name: "expires", label: "Expires", value: row.expires === null ? "never" : "", hint: row.expires === null ? "30d, 12h, 2w, a last day such as 2026-12-31, or never." : `Now ${atDay(row.expires)}. Empty keeps that; 30d, 12h, a last day, or never.` },
  { name: "labels", label: "Labels", value: row.labels.join(", "), hint: "team=search, tier=1" },
  { name: "note", label: "Note", value: row.note },
];

/** What the fields say, as the gateway reads it. */
function rules({ caps, models, expires, note, labels }, { isOperator } = {}) {
  const found = { models: list(models), note, labels: list(labels) };
  if (!isOperator) found.caps = capList(caps);
  if (expires) found.expires = expires;
  return found;
}

export function add() {
  ask({
    title: "Add a key",
    fields: [
      { name: "name", label: "Name", required: true, hint: "Letters, digits and . _ - @." },
      { name: "project", label: "Project", hint: "Its caps apply to this key too. Optional." },
      ...RULES(),
      { name: "operator", label: "Operator key: opens this console, sends no model requests", kind: "checkbox" },
    ],
    action: "Create key",
    submit: async (values) => {
      const isOperator = values.operator === "on";
      const body = { name: values.name.trim(), ...rules(values, { isOperator }) };
      if (isOperator) body.operator = true;
      else if (values.project.trim()) body.project = values.project.trim();
      const made = await send("POST", "brim/keys", body);
      if (values.user_caps && !isOperator) await setUserCaps(made, values.user_caps);
      return secret(made, "This is the key. It is not shown again.");
    },
  });
}

const secret = ({ key, name }, words) => [
  el("h2", { id: "form-title" }, name),
  el("p", words),
  el("input.secret", { type: "text", readonly: true, value: key, "aria-label": "Key", onfocus: (event) => event.target.select() }),
];

function edit(row) {
  ask({
    title: `Edit ${row.name}`,
    words: row.operator && "An operator key has no caps.",
    fields: RULES(row).filter(({ name }) => !row.operator || !name.endsWith("caps")),
    action: "Save",
    submit: async (values) => {
      await send("PATCH", `brim/keys/${row.id}`, rules(values, { isOperator: row.operator }));
      const isChanged = !row.operator && values.user_caps !== row.user_caps.join("; ");
      if (isChanged) await setUserCaps(row, values.user_caps);
    },
  });
}

const setUserCaps = ({ id }, text) => send("PUT", "brim/caps", { scope: `users:${id}`, caps: capList(text) });

const USERS = [
  { title: "End user", kind: "wide-name", cell: ({ user }) => (user ? named(user) : "not named") },
  { title: "Requests", kind: "num", cell: ({ requests }) => number(requests, "request") },
  { title: "Tokens", kind: "num", cell: ({ tokens }) => number(tokens, "token") },
  { title: "Cost", kind: "num", cell: ({ cost }) => cents(cost) },
  {
    title: "Caps",
    kind: "words",
    cell: ({ caps }) => (caps.length ? el("ul.caps", caps.map((cap) => el("li", `${cap.cap} `, el("span.detail", `${percent(cap.spent, cap.limit)} used`)))) : UNKNOWN),
  },
];

/** Show the end users of a key, and how much of their caps they have used. */
async function users(row) {
  const dialog = the("form-dialog");
  let found = { data: [], omitted: 0 };
  let words = "There are no requests this month.";
  try {
    found = await get(`brim/keys/${row.id}/users`);
    if (found.data.length) words = `Since ${found.since}, the highest cost first.`;
  } catch (problem) {
    words = problem.message;
  }
  clear(dialog);
  dialog.append(
    el(
      "div.card",
      el("h2", { id: "form-title" }, `End users of ${row.name}`),
      el("p", words),
      found.data.length ? table("End users", USERS, found.data, "keys") : null,
      found.omitted > 0 ? el("p.hint", `${number(found.omitted, "end user")} more are not shown.`) : null,
      el("div.buttons", el("button.primary", { type: "button", onclick: () => dialog.close() }, "Done")),
    ),
  );
  dialog.showModal();
}

function rotate(row) {
  ask({
    title: `Rotate ${row.name}`,
    words: "The key gets a new secret. Its caps, limits and spending stay.",
    fields: [{ name: "overlap", label: "The old secret stays valid for", value: "24h", required: true, hint: "12h, 7d, or 0 after a leak." }],
    action: "Create new secret",
    submit: async ({ overlap }) =>
      secret(await send("POST", `brim/keys/${row.id}/rotate`, { overlap }), "This is the new key. It is not shown again."),
  });
}

function revoke(row) {
  const isOwn = row.operator && signedIn.read() !== null;
  ask({
    title: `Revoke ${row.name}?`,
    words: `Clients with this key get errors from now on. This cannot be undone; its spending stays in the ledger.${isOwn ? " If it is the key you are signed in with, you will be signed out." : ""}`,
    action: "Revoke key",
    isDangerous: true,
    submit: async () => {
      await send("DELETE", `brim/keys/${row.id}`);
    },
  });
}

export function capProject() {
  ask({
    title: "Set caps of a project, or of all keys",
    words: "The caps replace those that it has. Empty removes them.",
    fields: [
      { name: "project", label: "Project", hint: "Empty for all keys together." },
      { name: "caps", label: "Caps", hint: CAP_HINT },
    ],
    action: "Set caps",
    isDangerous: false,
    submit: async ({ project, caps }) => {
      const scope = project.trim() ? `project:${project.trim()}` : "all";
      await send("PUT", "brim/caps", { scope, caps: capList(caps) });
    },
  });
}

// A secret does not stay in the page.
the("form-dialog").addEventListener("close", () => clear(the("form-dialog")));
the("add-key").addEventListener("click", add);
the("cap-project").addEventListener("click", capProject);
