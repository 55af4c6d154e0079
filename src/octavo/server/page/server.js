// Where the server is, and the keys it gets: kept by the browser for this tab alone.

const ROOT = new URL("../", import.meta.url);
const KEY = "octavo.key";
const ADMIN = "octavo.admin-key";

export const keys = {
  get own() { return sessionStorage.getItem(KEY) ?? ""; },
  get admin() { return sessionStorage.getItem(ADMIN) ?? ""; },
  keep(own, admin) {
    for (const [name, value] of [[KEY, own], [ADMIN, admin]]) {
      if (value) sessionStorage.setItem(name, value);
      else sessionStorage.removeItem(name);
    }
  },
};

export const url = (path) => new URL(path, ROOT);

/** Headers for a tenant, or for whoever sees more: the administrator if there is a key. */
export function headers({ admin = false } = {}) {
  const key = admin ? keys.admin || keys.own : keys.own || keys.admin;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** An answer that is an error. */
export class Refused extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Ask; raises Refused with the server's own words. */
export async function ask(path, { admin = false, body, method, signal } = {}) {
  const answer = await fetch(url(path), {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers: { ...headers({ admin }), ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
  });
  if (answer.ok) return answer;
  let words = answer.statusText || String(answer.status);
  try {
    words = (await answer.json()).error.message;
  } catch { /* it says nothing more */ }
  throw new Refused(answer.status, words, Number(answer.headers.get("Retry-After")) || 0);
}

/** Yield the events of an answer: {event, data}. A comment is yielded without data. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const pieces = rest.split("\n\n");
      rest = pieces.pop();
      for (const piece of pieces) {
        const found = { event: "message", data: null };
        for (const line of piece.split("\n")) {
          if (line.startsWith("data: ")) found.data = (found.data ?? "") + line.slice(6);
          else if (line.startsWith("event: ")) found.event = line.slice(7);
        }
        yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
