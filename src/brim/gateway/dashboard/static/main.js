// The page: which view is open, who is signed in, and a question about every second.

import { the } from "./dom.js";
import { Away, Refused, SILENT, ask, key } from "./asking.js";
import * as requests from "./requests.js";
import * as spending from "./spending.js";
import * as models from "./models.js";
import * as plan from "./plan.js";
import { atTime } from "./words.js";

const VIEWS = {
  requests: { path: () => requests.path, take: requests.take, every: 1_000 },
  spending: { path: spending.path, take: spending.take, every: 5_000 },
  models: { path: () => models.path, take: models.take, every: 5_000 },
};
/** Milliseconds until a question without an answer is said: requests are asked for each second. */
const LATE = 2_000;
const TRIES = 4;
const LONGEST = 15_000;

const state = {
  view: "requests",
  opened: null,
  isHeld: false,
  failures: 0,
  trouble: "",
  since: 0,
  asked: 0,
  timer: 0,
  isIn: false,
};

// Asking again and again

/** Ask for what the open view shows; an answer that comes too late is not shown. */
async function askAgain() {
  clearTimeout(state.timer);
  const turn = (state.asked += 1);
  if (document.hidden) return pulse();
  const view = VIEWS[state.view];
  const late = setTimeout(waited, LATE, turn);
  try {
    const [told] = await Promise.all([
      isStill() ? null : ask(view.path()),
      state.opened && look(state.opened),
    ]);
    if (turn !== state.asked) return;
    enter();
    if (told) view.take(told);
    recovered();
  } catch (error) {
    if (turn !== state.asked) return;
    if (error instanceof Refused) return refused(error);
    if (!(error instanceof Away)) console.error(error);
    failed(error);
  } finally {
    clearTimeout(late);
  }
  if (isStill() && !state.failures) return;
  const wait = state.failures ? Math.min(LONGEST, 1_000 * 2 ** (state.failures - 1)) : view.every;
  state.timer = setTimeout(askAgain, wait);
}

const isStill = () => state.isHeld && state.isIn && state.view === "requests";

function recovered() {
  state.failures = 0;
  state.trouble = "";
  the("trouble").hidden = true;
  document.body.classList.remove("stale");
  pulse();
}

/** Nobody has answered yet; what is known to be wrong says more. */
function waited(turn) {
  if (turn === state.asked && !state.trouble) troubled(SILENT, "No answer");
}

function failed(error) {
  state.failures += 1;
  troubled(error.message, error.status ? "Trouble" : "No answer");
}

/** Say what is wrong, in a sentence and in a word. */
function troubled(sentence, word) {
  if (!state.trouble) state.since = Date.now() / 1000;
  state.trouble = word;
  const said = sentence[0].toUpperCase() + sentence.slice(1);
  const since = `Since ${atTime(state.since)}; what is shown is older.`;
  const words = `${said}. ${since} It is asked again by itself.`;
  if (the("trouble").textContent !== words) the("trouble").textContent = words;
  the("trouble").hidden = false;
  document.body.classList.add("stale");
  pulse();
}

/** Say how the page is doing. Only a change is said: nobody is read the same every second. */
function pulse() {
  const [words, kind] = health();
  if (the("pulse").textContent !== words) the("pulse").textContent = words;
  the("pulse").className = kind;
}

function health() {
  if (!state.isIn) return ["", ""];
  if (state.trouble) return [state.trouble, "state bad"];
  return isStill() ? ["Paused", "state odd"] : ["Live", "state good"];
}

// Who is signed in

function enter() {
  if (state.isIn) return;
  state.isIn = true;
  the("enter").hidden = true;
  the("wrong").textContent = "";
  the("key").value = "";
  the("views").hidden = false;
  the("leave").hidden = key.read() === null;
  show();
}

function refused(error) {
  const wasGiven = key.read() !== null;
  out();
  the("wrong").textContent = wasGiven ? `This key does not open the page: ${error.message}` : "";
  the("key").focus();
}

function out() {
  key.forget();
  Object.assign(state, { isIn: false, failures: 0, trouble: "", opened: null });
  for (const view of [requests, spending, models]) view.forget();
  the("opened").close();
  the("opened").replaceChildren();
  the("trouble").hidden = true;
  the("views").hidden = the("leave").hidden = true;
  the("enter").hidden = false;
  for (const view of Object.keys(VIEWS)) the(view).hidden = true;
  pulse();
}

the("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  const secret = the("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(secret)) {
    the("wrong").textContent = "A key has letters, digits and signs only, and no spaces.";
    return;
  }
  key.keep(secret);
  follow();
});

the("leave").addEventListener("click", () => {
  clearTimeout(state.timer);
  state.asked += 1;
  out();
  history.replaceState(null, "", "#requests");
  the("wrong").textContent = "";
  the("key").focus();
});

// Views

function show() {
  for (const view of Object.keys(VIEWS)) the(view).hidden = !state.isIn || view !== state.view;
  for (const link of the("views").children) {
    const isHere = link.hash === `#${state.view}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${state.view[0].toUpperCase()}${state.view.slice(1)} · brim`;
}

/** The address says what is shown, so that it can be kept, and gone back to. */
function follow() {
  const [view, id] = location.hash.slice(1).split("/");
  if (view === "main") return;
  state.view = view in VIEWS ? view : "requests";
  state.opened = state.view === "requests" && /^[\w-]{1,80}$/.test(id ?? "") ? id : null;
  show();
  if (!state.opened) close();
  askAgain();
}

addEventListener("hashchange", follow);

// One request

/** Open a request. Several gateways may be behind one address, and only one of them knows it. */
async function look(id) {
  const dialog = the("opened");
  if (dialog.open && dialog.dataset.id === id && dialog.dataset.isOver) return;
  const request = await found(id);
  if (state.opened !== id) return;
  if (request) plan.draw(request, close);
  else plan.say(id, "The gateway does not remember this request any more.", close);
  dialog.dataset.id = id;
  dialog.dataset.isOver = !request || request.end !== "open" ? "yes" : "";
  if (!dialog.open) dialog.showModal();
}

async function found(id) {
  for (let left = TRIES; left > 0; left -= 1) {
    try {
      return await ask(`brim/requests/${encodeURIComponent(id)}`);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
  }
  return null;
}

const close = () => the("opened").close();

the("opened").addEventListener("close", () => {
  const { id } = the("opened").dataset;
  the("opened").dataset.id = "";
  if (state.opened) location.hash = "#requests";
  requests.focusOn(id);
});

the("opened").addEventListener("click", (event) => {
  if (event.target === the("opened")) close(); // beside the sheet
});

// Switches

the("hold").addEventListener("click", () => {
  state.isHeld = !state.isHeld;
  the("hold").textContent = state.isHeld ? "Go on" : "Pause";
  askAgain();
});

for (const id of ["find", "only-cut", "only-bad"]) the(id).addEventListener("input", requests.show);
the("days").addEventListener("change", askAgain);
document.addEventListener("visibilitychange", askAgain);
addEventListener("online", askAgain);

const dark = matchMedia("(prefers-color-scheme: dark)");

function themed() {
  const chosen = document.documentElement.dataset.theme;
  const isDark = chosen ? chosen === "dark" : dark.matches;
  the("theme").textContent = isDark ? "Light" : "Dark";
  the("theme").setAttribute("aria-label", isDark ? "Light colours" : "Dark colours");
}

the("theme").addEventListener("click", () => {
  const next = the("theme").textContent.toLowerCase();
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("brim-theme", next);
  } catch {
    // It holds until the page is left.
  }
  themed();
});
dark.addEventListener("change", themed);

themed();
follow();
