// Requests to the gateway. The operator key is kept in this tab only.

const KEY = "brim-key";
const TIMEOUT = 10_000;

export const NO_RESPONSE = "The gateway does not respond";

export class UnauthorizedError extends Error {}
/** No response, a timeout, or a response that is not from a gateway. */
export class UnavailableError extends Error {}

export const key = {
  read: () => sessionStorage.getItem(KEY),
  save: (secret) => sessionStorage.setItem(KEY, secret),
  remove: () => sessionStorage.removeItem(KEY),
};

let skew = 0;
/** Seconds since 1970 on the clock of the gateway, which may differ from this one. */
export const now = () => Date.now() / 1000 + skew;

/** Return the JSON at a path. Throw UnauthorizedError if a key is needed, else UnavailableError. */
export const get = (path) => request(path, {});

/** Send a change and return the response; it is made once, however often it arrives. */
export function send(method, path, body) {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const once = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return request(path, {
    method,
    headers: { "content-type": "application/json", "idempotency-key": once },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
}

async function request(path, { headers = {}, ...options }) {
  const secret = key.read();
  let response;
  try {
    response = await fetch(path, {
      ...options,
      headers: secret ? { ...headers, authorization: `Bearer ${secret}` } : headers,
      cache: "no-store",
      credentials: "same-origin", // the session of an operator who signed in at the provider
      redirect: "error",
      signal: AbortSignal.timeout(TIMEOUT),
    });
  } catch {
    throw new UnavailableError(NO_RESPONSE);
  }
  updateSkew(response);
  const body = await response.json().catch(() => null);
  if (response.ok && body !== null) return body;
  throw toError(response.status, body);
}

function updateSkew(response) {
  const sent = Date.parse(response.headers.get("date") ?? "");
  const offset = sent / 1000 - Date.now() / 1000;
  if (Number.isFinite(offset) && Math.abs(offset - skew) > 2) skew = offset;
}

function toError(status, body) {
  const error = body?.error ?? {};
  const message = typeof error.message === "string" ? error.message : `the gateway returned status ${status}`;
  const needsKey = status === 401 || (status === 403 && error.code !== "origin_not_allowed");
  return needsKey
    ? new UnauthorizedError(message)
    : Object.assign(new UnavailableError(message), { status });
}
