// The requests that live, and one of them followed: its table, with whom it shares, its copies.

import { make, span, write } from "./dom.js";
import { requestColour } from "./map.js";
import { STRINGS, fill, text } from "./strings.js";

const MOST_ROWS = 40;
const MOST_CHIPS = 300;
const MOST_LINES = 20;

export class Requests {
  /** memory: of all; side: of the stream that follows. follow(request or null): called to choose. */
  constructor(panel, memory, side, follow) {
    this.memory = memory;
    this.side = side;
    this.choose = follow;
    this.request = null;
    this.body = make("tbody");
    const columns = ["Request", "Tenant", "Phase", "Prompt", "Hit", "Tokens", "Blocks", "Preempted", "Follow"];
    const head = columns.map((name) => make("th", { scope: "col" }, text(`column${name}`)));
    this.table = make("div", { className: "wide" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), this.body));
    this.empty = make("p", { className: "quiet" }, text("noRequests"));
    this.more = make("p", { className: "quiet" });
    this.rows = new Map();
    this.title = make("h3", { id: "followed-title", tabIndex: -1 });
    this.facts = make("p", { id: "followed-facts" });
    this.miss = make("p", { id: "followed-miss" });
    this.tables = make("div", { id: "followed-tables" });
    this.copies = make("ul", { id: "followed-copies" });
    const leave = make("button", { type: "button", onclick: () => this.choose(null) }, text("unfollow"));
    this.followed = make("section", { hidden: true, "aria-labelledby": "followed-title" },
      this.title, this.facts, this.miss, this.tables, make("h3", {}, text("copies")), this.copies, leave);
    panel.append(this.followed, this.empty, this.table, this.more);
  }

  /** Follow a request; null: none. */
  follow(request) {
    this.request = request;
    this.known = null;
    this.tokens = null;
    this.told = new WeakSet();
    this.noted = [];
    this.followed.hidden = request === null;
    if (request === null) return;
    write(this.title, text("followTitle", { request }));
    this.tables.replaceChildren();
    this.copies.replaceChildren();
    this.drawFollowed();
    this.title.focus();
  }

  /** Return the blocks of the followed request. */
  blocks() {
    const found = new Set();
    for (const table of this.side.tables.values()) {
      for (const block of table.blocks) if (block >= 0) found.add(block);
    }
    return found;
  }

  /** Draw the list. */
  draw() {
    const live = this.memory.live.slice(0, MOST_ROWS);
    const wanted = new Set(live.map((row) => row.seq));
    for (const [seq, row] of this.rows) {
      if (wanted.has(seq)) continue;
      row.element.remove();
      this.rows.delete(seq);
    }
    for (const row of live) this.#row(row);
    this.table.hidden = !live.length;
    this.empty.hidden = live.length > 0;
    const waiting = this.memory.frame ? this.memory.frame.requests.running + this.memory.frame.requests.waiting - live.length : 0;
    write(this.more, waiting > 0 ? text("moreRequests", { n: waiting }) : "");
  }

  #row(row) {
    const facts = this.memory.facts(row.seq);
    if (!facts) return;
    if (!this.rows.has(row.seq)) {
      const cells = Array.from({ length: 8 }, (_, place) => make("td", { className: place > 2 ? "number" : "" }));
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = requestColour(facts.number);
      const name = make("span", {}, this.memory.name(row.seq));
      cells[0].append(swatch, name);
      const button = make("button", { type: "button", onclick: () => this.choose(facts.request) }, text("follow", { request: facts.request }));
      const element = make("tr", {}, ...cells, make("td", {}, button));
      this.rows.set(row.seq, { element, cells });
      this.body.append(element);
    }
    const { cells } = this.rows.get(row.seq);
    const said = [facts.tenant, STRINGS.phases[row.phase], facts.prompt, facts.hit ?? "–", row.tokens, row.blocks, row.preemptions];
    said.forEach((words, place) => write(cells[place + 1], String(words)));
  }

  /** Draw the followed request. */
  drawFollowed() {
    if (this.request === null) return;
    const side = this.side;
    const live = side.live.filter((row) => side.facts(row.seq)?.request === this.request);
    const all = [...side.sequences.values()].filter((facts) => facts.request === this.request);
    const first = all[0] ?? this.known ?? [...this.memory.sequences.values(), ...this.memory.ended.values()].find((one) => one.request === this.request);
    this.known = first ?? null;
    if (!first) {
      write(this.facts, text("followWaiting"));
      return;
    }
    const tokens = live.length ? Math.max(...live.map((row) => row.tokens)) : null;
    const said = text("followFacts", { prompt: first.prompt, hit: first.hit ?? "–", tokens: tokens ?? this.tokens ?? "–" });
    if (tokens !== null) this.tokens = tokens;
    write(this.facts, live.length ? said : `${said}. ${text("followEnded")}`);
    write(this.miss, this.#missed(first.miss));
    this.#drawTables();
    this.#drawCopies();
  }

  #missed(miss) {
    if (!miss) return this.known?.hit == null ? "" : text("missNone");
    let reason = STRINGS.missReasons[miss.reason] ?? miss.reason;
    if (miss.age_s != null) reason += fill(STRINGS.missAge, { age: span(miss.age_s), evicted: miss.evicted_since ?? "–" });
    return text("missAt", { position: miss.position, tokens: miss.tokens, reason });
  }

  #others(seqs) {
    return seqs.map((seq) => (seq < 0 ? text("otherTenant") : this.#name(seq))).join(", ");
  }

  #name(seq) {
    return this.side.facts(seq) ? this.side.name(seq) : this.memory.name(seq);
  }

  #drawTables() {
    const shown = [];
    for (const table of this.side.tables.values()) {
      const facts = this.side.facts(table.seq);
      if (facts?.request !== this.request) continue;
      const shared = new Map(table.shared);
      const from = Math.max(0, table.blocks.length - MOST_CHIPS);
      const chips = Array.from(table.blocks.slice(from), (block, place) => {
        const others = shared.get(from + place);
        return make("li", { className: others ? "shared" : "", title: others ? text("sharedWith", { others: this.#others(others) }) : "" },
          block < 0 ? "·" : String(block));
      });
      const n = table.offset + table.blocks.length;
      const parts = [make("h3", {}, text("tableTitle", { index: facts.index, group: table.group, n })), make("ul", { className: "chips" }, ...chips)];
      const earlier = table.offset + from;
      if (earlier) parts.push(make("p", { className: "quiet" }, text("tableEarlier", { n: earlier })));
      const together = new Map();
      for (const [, others] of table.shared) {
        const names = this.#others(others);
        together.set(names, (together.get(names) ?? 0) + 1);
      }
      for (const [others, count] of together) parts.push(make("p", { className: "sharing" }, text("sharedSummary", { n: count, others })));
      shown.push(...parts);
    }
    if (shown.length) this.tables.replaceChildren(...shown);
  }

  #drawCopies() {
    // The first of them may be older than this stream: that of the map has seen them.
    for (const copy of this.memory.copies) {
      if (this.told.has(copy) || this.memory.facts(copy.seq)?.request !== this.request) continue;
      this.told.add(copy);
      this.noted.push(text("copyLine", { ...copy, why: STRINGS.copyWhy[copy.why] ?? copy.why }));
    }
    const lines = this.noted.length ? this.noted.slice(-MOST_LINES) : [text("noCopies")];
    const said = lines.join("\n");
    if (this.copies.dataset.said === said) return;
    this.copies.dataset.said = said;
    this.copies.replaceChildren(...lines.map((line) => make("li", {}, line)));
  }
}
