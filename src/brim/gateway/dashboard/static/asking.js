// Asking the gateway. The operator's key is kept in this tab alone, and goes nowhere else.

const KEY = "brim-key";
const PATIENCE = 10_000;

export const SILENT = "The gateway does not answer";

export class Refused extends Error {}
/** Nobody answered, or not in time, or not as a gateway does. */
export class Away extends Error {}

export const key = {
  read: () => sessionStorage.getItem(KEY),
  keep: (secret) => sessionStorage.setItem(KEY, secret),
  forget: () => sessionStorage.removeItem(KEY),
};

let skew = 0;
/** Seconds since 1970 on the gateway's clock, which need not be this machine's. */
export const now = () => Date.now() / 1000 + skew;

/** The JSON at a path; `Refused` where a key is asked for, `Away` where there is no gateway. */
export async function ask(path) {
  const secret = key.read();
  const headers = secret ? { authorization: `Bearer ${secret}` } : {};
  let answer;
  try {
    answer = await fetch(path, {
      headers,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(PATIENCE),
    });
  } catch {
    throw new Away(SILENT);
  }
  keepTime(answer);
  const said = await answer.json().catch(() => null);
  if (answer.ok && said !== null) return said;
  throw fault(answer.status, said);
}

function keepTime(answer) {
  const told = Date.parse(answer.headers.get("date") ?? "");
  const off = told / 1000 - Date.now() / 1000;
  if (Number.isFinite(off) && Math.abs(off - skew) > 2) skew = off;
}

function fault(status, said) {
  const error = said?.error ?? {};
  const words = typeof error.message === "string" ? error.message : `it answered ${status}`;
  const asksForKey = status === 401 || (status === 403 && error.code !== "origin_refused");
  return asksForKey ? new Refused(words) : Object.assign(new Away(words), { status });
}
