// What stands around the map: its controls, the legend, and the block that is pointed at.

import { atMostEvery, byId, make, percent, span, write } from "./dom.js";
import { BlockMap } from "./map.js";
import { COUNTED } from "./memory.js";
import { ask } from "./server.js";
import { STRINGS, text } from "./strings.js";

const TEXT_AFTER_MS = 180;

export class MapView {
  constructor(memory) {
    this.memory = memory;
    this.block = -1;
    this.view = byId("map");
    this.map = new BlockMap(byId("map-canvas"), this.view, byId("map-space"), memory);
    this.showSoon = atMostEvery(200, () => this.#show());
    this.ageSoon = atMostEvery(1000, () => this.map.draw());
    this.counts = [];
    this.told = new Map();
    this.#listen();
    this.#legend();
  }

  /** Something new is known. */
  update() {
    const known = this.memory.cells !== null;
    byId("map-empty").hidden = known;
    this.map.draw();
    if (this.memory.copies.length) setTimeout(() => this.map.draw(), 1300);
    this.showSoon();
  }

  /** Outline the blocks of followed requests. */
  outline(blocks) {
    this.map.outlined = blocks;
    this.map.draw();
  }

  /** The theme is another. */
  recolour() {
    this.map.readColours();
    this.#legend();
  }

  #listen() {
    byId("colour").addEventListener("change", (event) => {
      this.map.colourBy = event.target.value;
      this.#legend();
      this.map.redraw();
      this.showSoon();
    });
    byId("zoom-in").addEventListener("click", () => this.map.zoomTo(Math.ceil(this.map.size * 1.4)));
    byId("zoom-out").addEventListener("click", () => this.map.zoomTo(Math.floor(this.map.size / 1.4)));
    byId("zoom-fit").addEventListener("click", () => this.map.zoomTo(0));
    this.view.addEventListener("pointermove", (event) => this.#point(event));
    this.view.addEventListener("pointerdown", (event) => this.#point(event));
    this.view.addEventListener("keydown", (event) => this.#key(event));
    this.view.addEventListener("focus", () => {
      if (this.block < 0 && this.memory.cells) this.choose(this.memory.pool.first);
    });
    setInterval(() => {
      if (this.map.colourBy === "age" && !document.hidden) this.map.draw();
    }, 1000);
  }

  #point(event) {
    if (!this.memory.cells) return;
    const frame = this.view.getBoundingClientRect();
    const block = this.map.at(event.clientX - frame.left, event.clientY - frame.top);
    if (block >= 0 && block !== this.block) this.choose(block, { show: false });
  }

  #key(event) {
    if (!this.memory.cells) return;
    const { first, count } = this.memory.pool;
    const { columns } = this.map;
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: 10 * columns, PageUp: -10 * columns,
    };
    let block = null;
    if (event.key in steps) block = this.map.beside(Math.max(first, this.block), steps[event.key]);
    else if (event.key === "Home") block = first;
    else if (event.key === "End") block = first + count - 1;
    else if (event.key === "+") byId("zoom-in").click();
    else if (event.key === "-") byId("zoom-out").click();
    else return;
    event.preventDefault();
    if (block !== null) this.choose(block);
  }

  /** Show one block. */
  choose(block, { show = true } = {}) {
    this.block = block;
    this.map.mark(block, { show });
    this.told = new Map();
    byId("cell-text").hidden = true;
    this.#cell();
    clearTimeout(this.asking);
    this.asking = setTimeout(() => this.#ask(block), TEXT_AFTER_MS);
  }

  async #ask(block) {
    try {
      const told = await (await ask(`v1/debug/memory/blocks/${block}`, { admin: true })).json();
      if (block !== this.block) return;
      this.told = new Map([["key", told.key], ["depth", told.depth]]);
      const box = byId("cell-text");
      box.hidden = !told.mine || told.state === "free";
      write(box, told.text ?? (told.tokens ? told.tokens.join(" ") : text(told.key ? "textHidden" : "textNone")));
      this.#cell();
    } catch { /* the stream says that the server is gone */ }
  }

  #show() {
    const { frame, pool } = this.memory;
    if (!frame) return;
    const counts = frame.counts;
    const blocks = pool.blocks;
    write(byId("summary"), frame.scope === "tenant"
      ? text("summaryTenant", { blocks })
      : text("summary", { held: counts.held, blocks, logical: counts.logical, waste: percent(counts.waste_share), model: pool.model }));
    this.counts.forEach((element, state) => write(element, String(counts[COUNTED[state]])));
    this.view.setAttribute("aria-valuemin", pool.first);
    this.view.setAttribute("aria-valuemax", pool.first + pool.count - 1);
    this.#cell();
  }

  #legend() {
    const list = byId("legend");
    this.counts = [];
    const entry = (colour, ...words) => {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = colour;
      return make("li", {}, swatch, ...words);
    };
    const { palette, colourBy } = this.map;
    const entries = STRINGS.states.map((name, state) => {
      const count = make("b", { id: `count-${COUNTED[state]}` }, "–");
      this.counts.push(count);
      return entry(colourBy === "state" || state === 0 || state === 6 ? palette[state] : "transparent", `${name} `, count);
    });
    if (colourBy !== "state") entries.push(entry(palette[7], text(colourBy === "age" ? "notMine" : "unowned")));
    if (colourBy === "age") {
      const ages = palette.slice(-12);
      const bar = make("li", {}, ...ages.map((colour) => {
        const swatch = make("span", { className: "swatch" });
        swatch.style.background = colour;
        return swatch;
      }), text("ageLegend", { from: span(0), to: span(2 ** 11) }));
      entries.push(bar);
    }
    list.replaceChildren(...entries);
    this.showSoon();
  }

  #cell() {
    const { cells, pool } = this.memory;
    const row = this.block - (pool?.first ?? 0);
    if (!cells || row < 0 || row >= pool.count) return;
    const state = STRINGS.states[cells.state[row]];
    const mine = this.memory.isMine(this.block);
    write(byId("cell-title"), text("cellTitle", { block: this.block }));
    byId("cell-help").hidden = true;
    const facts = [["factState", mine ? state : `${state}, ${text("notMine")}`]];
    if (pool.groups.length > 1 && cells.group[row] !== 255) facts.push(["factGroup", String(cells.group[row])]);
    if (mine && cells.state[row] !== 0) {
      const owner = cells.owner[row];
      facts.push(["factRefs", String(cells.refs[row])], ["factTokens", String(cells.tokens[row])], ["factHits", String(cells.hits[row])],
        ["factAge", text("ago", { time: span(this.memory.now - cells.used_s[row] / 10) })]);
      if (owner >= 0) facts.push(["factOwner", this.memory.name(owner)]);
      if (this.told.get("depth") != null && this.told.get("key")) facts.push(["factDepth", String(this.told.get("depth"))]);
      if (this.told.get("key")) facts.push(["factKey", this.told.get("key")]);
    }
    const list = byId("cell-facts");
    const said = JSON.stringify(facts);
    if (list.dataset.said !== said) {
      list.dataset.said = said;
      list.replaceChildren(...facts.flatMap(([name, value]) => [make("dt", {}, text(name)), make("dd", {}, value)]));
    }
    this.view.setAttribute("aria-valuenow", this.block);
    const spoken = { block: this.block, state, refs: cells.refs[row], tokens: cells.tokens[row] };
    this.view.setAttribute("aria-valuetext", text(mine ? "cellSpoken" : "cellSpokenOther", spoken));
  }
}
