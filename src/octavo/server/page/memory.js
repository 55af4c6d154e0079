// The memory as the stream tells of it: columns of cells, sequences, tables, copies.

const TYPES = {
  index: Uint32Array, state: Uint8Array, group: Uint8Array, refs: Uint16Array, tokens: Uint16Array,
  owner: Int32Array, hits: Uint16Array, used_s: Uint32Array, mine: Uint8Array, seq: Int32Array,
  phase: Uint8Array, computed: Uint32Array, blocks: Uint32Array, preemptions: Uint16Array,
  paused: Uint8Array,
};
const LIVE = { ...TYPES, tokens: Uint32Array };
const MOST_COPIES = 200;
const MOST_ENDED = 200;

/** Read a column: base64 of little-endian numbers. */
export function column(said, type) {
  const text = atob(said);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  return new type(bytes.buffer);
}

export const STATE = { free: 0, cached: 1, inUse: 2, shared: 3, tentative: 4, pinned: 5, quarantined: 6 };
export const COUNTED = ["free", "cached", "in_use", "shared", "tentative", "pinned", "quarantined"];

export class Memory {
  constructor() {
    this.forget();
  }

  /** Know nothing. */
  forget() {
    this.frame = null;
    this.pool = null;
    this.cells = null;
    this.sequences = new Map();
    this.ended = new Map();
    this.tables = new Map();
    this.copies = [];
    this.tree = null;
    this.whatIf = null;
    this.live = [];
    this.bandsChanged = true;
    this.heard = 0;
  }

  /** Take in a frame; returns false if one before it is missing. */
  takeIn(frame) {
    if (frame.type === "snapshot") {
      this.forget();
      this.pool = frame.pool;
    } else if (!this.frame || frame.base !== this.frame.seq || frame.epoch !== this.frame.epoch) {
      return false;
    }
    this.frame = frame;
    this.heard = performance.now();
    if (frame.cells) this.#cells(frame.cells);
    this.#requests(frame.requests);
    for (const table of frame.tables ?? []) {
      this.tables.set(`${table.seq}/${table.group}`, { ...table, blocks: column(table.blocks, Int32Array) });
    }
    if (frame.copies) {
      const now = performance.now();
      this.copies.push(...frame.copies.map((copy) => ({ ...copy, heard: now })));
      this.copies.splice(0, this.copies.length - MOST_COPIES);
    }
    if (frame.tree) this.tree = frame.tree;
    if (frame.what_if) this.whatIf = frame.what_if;
    return true;
  }

  /** The engine's clock, now. */
  get now() {
    return this.frame ? this.frame.now_s + (performance.now() - this.heard) / 1000 : 0;
  }

  /** True if the contents of a block are told. */
  isMine(block) {
    return !this.cells.mine || this.cells.mine[block - this.pool.first] === 1;
  }

  /** Facts of a sequence, alive or ended a while ago. */
  facts(seq) {
    return this.sequences.get(seq) ?? this.ended.get(seq) ?? null;
  }

  /** As what people know a sequence. */
  name(seq) {
    const facts = this.facts(seq);
    if (!facts) return `#${seq}`;
    return facts.index ? `${facts.request}/${facts.index}` : facts.request;
  }

  #cells(said) {
    if (!said.index) {
      this.cells = {};
      for (const [name, value] of Object.entries(said)) this.cells[name] = column(value, TYPES[name]);
      this.bandsChanged = true;
      return;
    }
    const index = column(said.index, Uint32Array);
    for (const [name, value] of Object.entries(said)) {
      if (name === "index") continue;
      const rows = column(value, TYPES[name]);
      const mine = this.cells[name];
      for (let at = 0; at < index.length; at += 1) {
        const row = index[at] - this.pool.first;
        if (name === "group" && mine[row] !== rows[at]) this.bandsChanged = true;
        mine[row] = rows[at];
      }
    }
  }

  #requests(said) {
    for (const facts of said.new) this.sequences.set(facts.seq, facts);
    for (const { seq } of said.gone) {
      const facts = this.sequences.get(seq);
      if (facts) this.ended.set(seq, facts);
      this.sequences.delete(seq);
      if (this.ended.size > MOST_ENDED) this.ended.delete(this.ended.keys().next().value);
      for (const name of this.tables.keys()) if (name.startsWith(`${seq}/`)) this.tables.delete(name);
    }
    const columns = {};
    for (const [name, value] of Object.entries(said.live)) columns[name] = column(value, LIVE[name]);
    this.live = Array.from(columns.seq ?? [], (seq, row) => ({
      seq, phase: columns.phase[row], tokens: columns.tokens[row], computed: columns.computed[row],
      blocks: columns.blocks[row], preemptions: columns.preemptions[row], paused: columns.paused[row],
    }));
  }
}
