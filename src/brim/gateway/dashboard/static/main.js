// The dashboard: views, sign-in, and polling.

import { clear, the } from "./dom.js";
import { NO_RESPONSE, UnauthorizedError, UnavailableError, get, key, send } from "./api.js";
import * as requests from "./requests.js";
import * as spending from "./spending.js";
import * as models from "./models.js";
import * as overview from "./overview.js";
import * as keys from "./keys.js";
import * as changes from "./changes.js";
import * as plan from "./plan.js";
import { atTime } from "./format.js";

const VIEWS = {
  overview: { module: overview, every: 10_000 },
  requests: { module: requests, every: 1_000 },
  spending: { module: spending, every: 5_000 },
  keys: { module: keys, every: 5_000 },
  models: { module: models, every: 5_000 },
  changes: { module: changes, every: 5_000 },
};
const pathOf = ({ path }) => (typeof path === "string" ? path : path());
/** Milliseconds without a response after which the dashboard says so. */
const SLOW = 2_000;
const ATTEMPTS = 4;
const MAX_PAUSE = 15_000;

const state = {
  view: "requests",
  openId: null,
  isPaused: false,
  failures: 0,
  problem: "",
  since: 0,
  polls: 0,
  timer: 0,
  isSignedIn: false,
  hasSession: false,
  signInProblem: "",
};

// Polling

/** Request the data of the current view; a response to an older poll is ignored. */
async function poll() {
  clearTimeout(state.timer);
  const number = (state.polls += 1);
  if (document.hidden) return showStatus();
  const view = VIEWS[state.view];
  const timer = setTimeout(warnSlow, SLOW, number);
  try {
    const [data] = await Promise.all([
      isPaused() ? null : get(pathOf(view.module)),
      state.openId && openRequest(state.openId),
    ]);
    if (number !== state.polls) return;
    signIn();
    if (data) view.module.update(data);
    clearProblem();
  } catch (error) {
    if (number !== state.polls) return;
    if (error instanceof UnauthorizedError) return rejectKey(error);
    if (!(error instanceof UnavailableError)) console.error(error);
    fail(error);
  } finally {
    clearTimeout(timer);
  }
  if (isPaused() && !state.failures) return;
  const pause = state.failures ? Math.min(MAX_PAUSE, 1_000 * 2 ** (state.failures - 1)) : pauseOf(view);
  state.timer = setTimeout(poll, pause);
}

/** The history of requests changes less often than the live list. */
const pauseOf = ({ module, every }) => (module === requests && !requests.isLive() ? 10_000 : every);

const isPaused = () =>
  state.isPaused && state.isSignedIn && state.view === "requests" && requests.isLive();

function clearProblem() {
  state.failures = 0;
  state.problem = "";
  the("problem").hidden = true;
  document.body.classList.remove("stale");
  showStatus();
}

/** Warn that there is no response yet, unless a problem is shown already. */
function warnSlow(number) {
  if (number === state.polls && !state.problem) showProblem(NO_RESPONSE, "No response");
}

function fail(error) {
  state.failures += 1;
  showProblem(error.message, error.status ? "Error" : "No response");
}

/** Show what is wrong, as a message and as a status. */
function showProblem(message, status) {
  if (!state.problem) state.since = Date.now() / 1000;
  state.problem = status;
  const sentence = message[0].toUpperCase() + message.slice(1).replace(/\.$/, "");
  const since = `Data has been outdated since ${atTime(state.since)}.`;
  const words = `${sentence}. ${since} Retrying automatically.`;
  if (the("problem").textContent !== words) the("problem").textContent = words;
  the("problem").hidden = false;
  document.body.classList.add("stale");
  showStatus();
}

/** Show the status. Change it only if needed: screen readers announce every change. */
function showStatus() {
  const [words, kind] = currentStatus();
  if (the("status").textContent !== words) the("status").textContent = words;
  the("status").className = kind;
}

function currentStatus() {
  if (!state.isSignedIn) return ["", ""];
  if (state.problem) return [state.problem, "state bad"];
  return isPaused() ? ["Paused", "state odd"] : ["Live", "state good"];
}

// Sign-in

function signIn() {
  if (state.isSignedIn) return;
  state.isSignedIn = true;
  the("sign-in").hidden = true;
  the("sign-in-error").textContent = "";
  the("key").value = "";
  the("views").hidden = false;
  showSignOut();
  show();
}

const showSignOut = () => {
  the("sign-out").hidden = !state.isSignedIn || (key.read() === null && !state.hasSession);
};

const SIGN_IN_PROBLEMS = {
  denied: "You signed in, but you are not one of the operators of this gateway.",
  expired: "The sign-in took too long, or began in another browser. Try again.",
  unavailable: "The sign-in provider does not respond. Try again soon.",
  failed: "The sign-in failed. The log of the gateway says why.",
};

/** Offer the sign-in provider, if there is one, and find out whether there is a session. */
async function checkSession() {
  try {
    const { sign_in: isOffered, operator } = await get("brim/session");
    the("provider").hidden = !isOffered;
    state.hasSession = operator !== null;
    showSignOut();
  } catch {
    // The next poll says what is wrong.
  }
}

/** Take the problem of a sign-in from the URL to which the gateway led back. */
function takeSignInProblem() {
  const [view, problem] = location.hash.slice(1).split("/");
  if (view !== "sign-in") return;
  history.replaceState(null, "", "#requests");
  state.signInProblem = SIGN_IN_PROBLEMS[problem] ?? "";
}

function rejectKey(error) {
  const wasGiven = key.read() !== null;
  signOut();
  the("sign-in-error").textContent = wasGiven ? `This key cannot open the dashboard: ${error.message}` : state.signInProblem;
  the("key").focus();
}

function signOut() {
  key.remove();
  Object.assign(state, { isSignedIn: false, failures: 0, problem: "", openId: null });
  for (const { module } of Object.values(VIEWS)) module.reset();
  the("form-dialog").close();
  clear(the("form-dialog"));
  the("request").close();
  the("request").replaceChildren();
  the("problem").hidden = true;
  the("views").hidden = the("sign-out").hidden = true;
  the("sign-in").hidden = false;
  for (const view of Object.keys(VIEWS)) the(view).hidden = true;
  showStatus();
}

the("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const secret = the("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(secret)) {
    the("sign-in-error").textContent = "A key contains letters, digits and punctuation, but no spaces.";
    return;
  }
  key.save(secret);
  showLocation();
});

the("sign-out").addEventListener("click", () => {
  clearTimeout(state.timer);
  if (state.hasSession) send("POST", "brim/sign-out").catch(fail);
  Object.assign(state, { hasSession: false, signInProblem: "" });
  state.polls += 1;
  signOut();
  history.replaceState(null, "", "#requests");
  the("sign-in-error").textContent = "";
  the("key").focus();
});

// Views

function show() {
  for (const view of Object.keys(VIEWS)) the(view).hidden = !state.isSignedIn || view !== state.view;
  for (const link of the("views").children) {
    const isHere = link.hash === `#${state.view}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${state.view[0].toUpperCase()}${state.view.slice(1)} · brim`;
}

/** Show the view in the URL, so that it can be bookmarked. */
function showLocation() {
  const [view, id] = location.hash.slice(1).split("/");
  if (view === "main") return;
  state.view = view in VIEWS ? view : "requests";
  state.openId = state.view === "requests" && /^[\w-]{1,80}$/.test(id ?? "") ? id : null;
  show();
  if (!state.openId) the("request").close();
  poll();
}

addEventListener("hashchange", showLocation);

// One request

/** Open a request. Behind a load balancer, only one of several gateways knows it. */
async function openRequest(id) {
  const dialog = the("request");
  if (dialog.open && dialog.dataset.id === id && dialog.dataset.hasEnded) return;
  const request = await find(id);
  if (state.openId !== id) return;
  if (request) plan.draw(request, close);
  else plan.showMessage(id, "The gateway no longer has this request.", close);
  dialog.dataset.id = id;
  dialog.dataset.hasEnded = !request || request.end !== "open" ? "yes" : "";
  if (!dialog.open) dialog.showModal();
}

async function find(id) {
  for (let left = ATTEMPTS; left > 0; left -= 1) {
    try {
      return await get(`brim/requests/${encodeURIComponent(id)}`);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
  }
  return null;
}

/** Close the request. The URL changes first: a dialog reports "close" with the next frame only. */
function close() {
  leaveRequest();
  the("request").close();
}

/** Whether the URL has left the request whose "close" is still to come: it may be back already. */
let hasLeft = false;

function leaveRequest() {
  if (!state.openId) return;
  hasLeft = true;
  state.openId = null;
  location.hash = "#requests";
}

the("request").addEventListener("cancel", leaveRequest); // Escape

the("request").addEventListener("close", () => {
  const isDone = hasLeft;
  hasLeft = false;
  if (the("request").open) return; // opened again before this event
  const { id } = the("request").dataset;
  the("request").dataset.id = "";
  if (!isDone) leaveRequest();
  requests.focusOn(id);
});

the("request").addEventListener("click", (event) => {
  if (event.target === the("request")) close(); // outside of the dialog
});

// Controls

the("pause").addEventListener("click", () => {
  state.isPaused = !state.isPaused;
  the("pause").textContent = state.isPaused ? "Resume" : "Pause";
  poll();
});

let typing = 0;
for (const id of ["filter", "only-trimmed", "only-failed"]) {
  the(id).addEventListener("input", () => {
    requests.show();
    clearTimeout(typing);
    if (!requests.isLive()) typing = setTimeout(searchAgain, 300);
  });
}

/** Drop the rows of the last search, and begin another. */
function searchAgain() {
  requests.reset();
  poll();
}

the("period").addEventListener("change", () => {
  the("pause").hidden = !requests.isLive();
  searchAgain();
});
the("more").addEventListener("click", async () => {
  try {
    await requests.more();
  } catch (error) {
    fail(error);
  }
});
for (const id of ["days", "overview-period", "overview-group", "all-keys"]) the(id).addEventListener("change", poll);
keys.listen(poll);
document.addEventListener("visibilitychange", poll);
addEventListener("online", poll);

const dark = matchMedia("(prefers-color-scheme: dark)");

function showTheme() {
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
    // The theme lasts until the page is closed.
  }
  showTheme();
});
dark.addEventListener("change", showTheme);

showTheme();
takeSignInProblem();
showLocation();
checkSession();
