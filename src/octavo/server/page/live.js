// A stream that is opened again whenever it ends, with growing pauses: through restarts of the server.

import { ask, events } from "./server.js";

const FIRST_MS = 500;
const LONGEST_MS = 10_000;
const SILENCE_MS = 30_000;

/** path(): what to ask for, or null for nothing. told: {event(kind, data), status(kind, detail)}. */
export class Live {
  #path;
  #told;
  #abort = null;
  #wake = null;
  #open = false;
  #fails = 0;

  constructor(path, told) {
    this.#path = path;
    this.#told = told;
    document.addEventListener("visibilitychange", () => this.reopen());
    addEventListener("online", () => this.reopen());
  }

  /** Begin. */
  start() {
    if (this.#open) return;
    this.#open = true;
    this.#run();
  }

  /** Open the stream again at once: something about it has changed. */
  reopen() {
    this.#fails = 0;
    this.#abort?.abort();
    this.#wake?.();
  }

  async #run() {
    for (;;) {
      const path = document.hidden ? null : this.#path();
      if (path === null) {
        this.#told.status?.("hidden");
        await this.#pause();
        continue;
      }
      let wait = null;
      try {
        await this.#read(path);
      } catch (error) {
        if (error.name === "AbortError" && !error.silent) continue;
        if (error.status === 401) {
          this.#told.status?.("needs-key");
          await this.#pause();
          continue;
        }
        if (error.status >= 400 && error.status < 500 && error.status !== 429) {
          this.#told.status?.("refused", error.message);
          await this.#pause(LONGEST_MS);
          continue;
        }
        wait = error.retryAfter ? 1000 * error.retryAfter : null;
      }
      this.#fails += 1;
      const grown = Math.min(LONGEST_MS, FIRST_MS * 2 ** (this.#fails - 1));
      const ms = wait ?? grown * (0.7 + 0.6 * Math.random());
      this.#told.status?.("lost", ms / 1000);
      await this.#pause(ms);
    }
  }

  async #read(path) {
    const abort = (this.#abort = new AbortController());
    this.#told.status?.("connecting");
    let silent = false;
    let timer = 0;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => { silent = true; abort.abort(); }, SILENCE_MS);
    };
    listen();
    try {
      const answer = await ask(path, { admin: true, signal: abort.signal });
      for await (const { event, data } of events(answer)) {
        listen();
        if (data === null) continue;
        this.#fails = 0;
        this.#told.event(event, JSON.parse(data));
      }
    } catch (error) {
      if (silent) error.silent = true;
      throw error;
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  #pause(ms) {
    return new Promise((go) => {
      const timer = ms === undefined ? 0 : setTimeout(go, ms);
      this.#wake = () => { clearTimeout(timer); go(); };
    });
  }
}
