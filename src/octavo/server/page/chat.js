// The playground: a conversation, the same prompt many times, many questions on one document.

import { byId, make } from "./dom.js";
import { requestColour } from "./map.js";
import { asCode, optionFields, wishes } from "./request.js";
import { ask, events } from "./server.js";
import { text } from "./strings.js";

const TIMES = 8;

export class Chat {
  /** follow(request): called when somebody wants to see a request. numberOf(request): for colours. */
  constructor({ follow, numberOf }) {
    this.model = "";
    this.follow = follow;
    this.numberOf = numberOf;
    this.turns = [];
    this.abort = null;
    this.log = byId("log");
    optionFields();
    byId("say").value = text("messageExample");
    byId("document").value = text("documentExample");
    byId("questions").value = text("questionsExample");
    this.#listen();
  }

  #listen() {
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("say").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.abort) this.#send();
      }
    });
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("again").addEventListener("click", () => this.#regenerate());
    byId("clear").addEventListener("click", () => this.#clear());
    byId("eight").addEventListener("click", () => this.#eight());
    byId("ask-document").addEventListener("click", () => this.#document());
    byId("chat-form").addEventListener("input", () => this.#code());
    byId("code-box").addEventListener("toggle", () => this.#code());
    byId("code-copy").addEventListener("click", async () => {
      await navigator.clipboard?.writeText(byId("code").textContent);
      byId("code-copy").textContent = text("copied");
      setTimeout(() => { byId("code-copy").textContent = text("copy"); }, 1500);
    });
  }

  /** Return the message in the box, or null: then it says so. */
  #said() {
    const said = byId("say").value.trim();
    if (said) return said;
    this.#fail(text("needsText"));
    return null;
  }

  async #send() {
    const said = this.#said();
    if (said === null) return;
    this.turns.push({ role: "user", content: said });
    this.#turn("you", said);
    byId("say").value = "";
    await this.#answer();
  }

  async #regenerate() {
    if (this.turns.at(-1)?.role === "assistant") this.turns.pop();
    this.lastAnswer?.remove();
    await this.#answer();
  }

  async #answer() {
    const turn = this.#turn("assistant", "");
    this.lastAnswer = turn.element;
    const pieces = [];
    const boxes = new Map();
    const whole = await this.#stream("v1/chat/completions", () => ({ messages: [...this.turns], ...this.#wishes() }), {
      begun: (names) => turn.element.append(...this.#followButtons(names)),
      piece: (choice) => {
        const delta = choice.delta?.content ?? "";
        pieces[choice.index] = (pieces[choice.index] ?? "") + delta;
        this.#show(turn, boxes, choice.index, delta, pieces.length);
      },
    });
    if (pieces[0]) this.turns.push({ role: "assistant", content: pieces[0] });
    if (whole !== null) this.#note(turn, whole);
    this.#code();
  }

  /** Send the conversation so far, and the message, as so many requests at once. */
  async #eight() {
    const said = this.#said();
    if (said === null) return;
    const messages = [...this.turns, { role: "user", content: said }];
    this.#turn("you", `${said} (×${TIMES})`);
    await this.#many(Array(TIMES).fill(messages), null);
  }

  async #document() {
    const system = byId("document").value.trim();
    const questions = byId("questions").value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!system || !questions.length) {
      this.#fail(text("needsText"));
      return;
    }
    this.#turn("you", questions.join("\n"));
    // In the user's turn: not every template has a system message.
    const conversations = questions.map((question) => [{ role: "user", content: `${system}\n\n${question}` }]);
    await this.#many(conversations, questions);
  }

  /** Browsers open few connections to a server: many prompts go as one call with each its own request. */
  async #many(conversations, titles) {
    const turn = this.#turn("assistant", "");
    const boxes = new Map();
    const grid = make("div", { className: "answers" });
    turn.element.append(grid);
    let names = [];
    const whole = await this.#stream("v1/completions", async (signal) => {
      const { n, ...wanted } = this.#wishes();
      const same = new Map();
      for (const messages of conversations) {
        const said = JSON.stringify(messages);
        if (same.has(said)) continue;
        const body = { messages, add_generation_prompt: true };
        same.set(said, (await (await ask("tokenize", { body, signal })).json()).tokens);
      }
      return { prompt: conversations.map((messages) => same.get(JSON.stringify(messages))), ...wanted };
    }, {
      begun: (found) => { names = found; },
      piece: (choice) => {
        if (!boxes.has(choice.index)) {
          const box = make("div", {});
          const name = names[choice.index];
          if (name) {
            box.dataset.request = name;
            box.append(...this.#followButtons([name]), "\n");
          }
          if (titles) box.append(make("b", {}, titles[choice.index]), "\n");
          boxes.set(choice.index, box);
          grid.append(box);
          this.#colour(box, name);
        }
        boxes.get(choice.index).append(choice.text);
      },
    });
    if (whole !== null) this.#note(turn, whole);
  }

  /** Ask, and hand on each piece; returns null when all has come, or what to say of the end. */
  async #stream(path, body, { begun, piece }) {
    if (this.abort) return "";
    const abort = (this.abort = new AbortController());
    this.#busy(true);
    try {
      const said = { ...(await body(abort.signal)), stream: true };
      const answer = await ask(path, { body: said, signal: abort.signal });
      begun((answer.headers.get("x-octavo-requests") ?? "").split(",").map((one) => one.trim()).filter(Boolean));
      for await (const { data } of events(answer)) {
        if (data === null) continue;
        if (data === "[DONE]") return null;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        for (const choice of chunk.choices) piece(choice);
        this.log.scrollTop = this.log.scrollHeight;
      }
      throw new Error(text("unknownEnd"));
    } catch (error) {
      return error.name === "AbortError" ? text("stopped") : text("failed", { reason: error.message });
    } finally {
      this.abort = null;
      this.#busy(false);
    }
  }

  #wishes() {
    return wishes(this.model);
  }

  #show(turn, boxes, index, delta, choices) {
    if (choices > 1 && !boxes.has("grid")) {
      boxes.set("grid", make("div", { className: "answers" }));
      turn.element.append(boxes.get("grid"));
    }
    if (index === 0) {
      turn.words.append(delta);
      return;
    }
    if (!boxes.has(index)) {
      boxes.set(index, make("div", {}));
      boxes.get("grid").append(boxes.get(index));
    }
    boxes.get(index).append(delta);
  }

  #colour(box, name, tries = 20) {
    const number = name ? this.numberOf(name) : null;
    if (number !== null) box.style.borderLeftColor = requestColour(number);
    else if (name && tries) setTimeout(() => this.#colour(box, name, tries - 1), 100);
  }

  #followButtons(names) {
    return names.map((name) => make("button", { type: "button", onclick: () => this.follow(name) }, text("follow", { request: name })));
  }

  #turn(who, said) {
    const words = make("span", {}, said);
    const element = make("div", { className: "turn" }, make("span", { className: "who" }, text(who)), words);
    this.log.append(element);
    this.log.scrollTop = this.log.scrollHeight;
    return { element, words };
  }

  #note(turn, said) {
    if (said) turn.element.append(make("p", { className: "turn error" }, said));
  }

  #fail(said) {
    this.log.append(make("p", { className: "turn error" }, said));
    this.log.scrollTop = this.log.scrollHeight;
  }

  #clear() {
    this.abort?.abort();
    this.turns = [];
    this.lastAnswer = null;
    this.log.replaceChildren();
    this.#busy(false);
  }

  #busy(busy) {
    this.log.setAttribute("aria-busy", String(busy));
    for (const id of ["send", "eight", "ask-document"]) byId(id).disabled = busy;
    byId("stop").disabled = !busy;
    byId("again").disabled = busy || !this.turns.length;
  }

  #code() {
    if (!byId("code-box").open) return;
    let said;
    try {
      const next = byId("say").value.trim();
      const messages = [...this.turns, ...(next ? [{ role: "user", content: next }] : [])];
      said = asCode({ messages, ...this.#wishes(), stream: true }, byId("code-as").value);
    } catch (error) {
      said = error.message;
    }
    byId("code").textContent = said;
  }
}

