// Draws blocks as cells: only those in view, and of these only what has changed.

import { STATE } from "./memory.js";
import { text } from "./strings.js";

const HEADING = 20;
const NO_GROUP = 255;
const HUES = 24;
const AGES = 12;
const FLASH_MS = 1200;
const LARGEST = 32;
const LABELLED = 15;
const OTHER = 7;
const HUE_0 = 8;
const AGE_0 = HUE_0 + HUES;

/** Place of a request's colour: requests that follow each other differ most. */
export const hueOf = (number) => (number * 9) % HUES;

/** Colour of a request, as a style. */
export function requestColour(number) {
  const dark = document.documentElement.dataset.theme === "dark";
  return `hsl(${(hueOf(number) * 360) / HUES} 65% ${dark ? 62 : 40}%)`;
}

/** Seconds at which the age of a bucket ends: 1 s, 2 s, 4 s, … */
const ageBucket = (seconds) => Math.min(AGES - 1, Math.floor(Math.log2(Math.max(0, seconds) + 1)));

export class BlockMap {
  /** canvas is drawn on, view is what scrolls over it, space is as high as all cells. */
  constructor(canvas, view, space, memory) {
    this.canvas = canvas;
    this.view = view;
    this.space = space;
    this.memory = memory;
    this.colourBy = "state";
    this.zoom = 0;
    this.marked = -1;
    this.outlined = new Set();
    this.bands = [];
    this.drawn = new Int32Array(0);
    this.columns = 1;
    this.size = 8;
    this.readColours();
    view.addEventListener("scroll", () => this.redraw());
    new ResizeObserver(() => this.resize()).observe(view);
  }

  /** Read the theme's colours. */
  readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const mix = (share) => `color-mix(in srgb, ${read("--age-old")} ${Math.round(100 * share)}%, ${read("--age-young")})`;
    this.palette = [
      ...[0, 1, 2, 3, 4, 5, 6].map((state) => read(`--state-${state}`)),
      read("--other"),
      ...Array.from({ length: HUES }, (_, hue) => `hsl(${(hue * 360) / HUES} 65% ${document.documentElement.dataset.theme === "dark" ? 62 : 40}%)`),
      ...Array.from({ length: AGES }, (_, age) => mix(age / (AGES - 1))),
    ];
    this.markColour = read("--mark");
    this.labelColour = read("--on-cell");
    this.textColour = read("--ink");
    this.ground = read("--ground");
    this.redraw();
  }

  /** Fit the canvas to its place. */
  resize() {
    const ratio = devicePixelRatio || 1;
    this.width = this.view.clientWidth;
    this.height = this.view.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.layOut();
  }

  /** Make cells larger or smaller; 0: so that all fit. */
  zoomTo(size) {
    this.zoom = size === 0 ? 0 : Math.max(2, Math.min(LARGEST, size));
    this.layOut();
  }

  /** Place all cells: a band for each group, if there are several, and one for what is free. */
  layOut() {
    const { cells, pool } = this.memory;
    if (!cells || !this.width) return;
    const count = pool.count;
    const fit = Math.floor(Math.sqrt((this.width * this.height) / Math.max(1, count)));
    this.size = this.zoom || Math.max(3, Math.min(26, fit));
    if (!this.zoom) while (this.size > 3 && this.#rowsHeight(count) > this.height) this.size -= 1;
    this.columns = Math.max(1, Math.floor(this.width / this.size));
    const several = pool.groups.length > 1;
    const rows = new Map();
    for (let row = 0; row < count; row += 1) {
      const group = several ? cells.group[row] : 0;
      if (!rows.has(group)) rows.set(group, []);
      rows.get(group).push(row);
    }
    this.bands = [];
    this.placeOf = new Int32Array(count);
    this.bandOf = new Uint8Array(count);
    let top = 0;
    for (const group of [...rows.keys()].sort((a, b) => a - b)) {
      const members = rows.get(group);
      members.forEach((row, place) => {
        this.placeOf[row] = place;
        this.bandOf[row] = this.bands.length;
      });
      const start = top + (several ? HEADING : 0);
      const height = Math.ceil(members.length / this.columns) * this.size;
      this.bands.push({ group, members, top, start, end: start + height, title: several ? this.#title(group) : "" });
      top = start + height + (several ? 4 : 0);
    }
    this.space.style.height = `${top}px`;
    this.memory.bandsChanged = false;
    this.redraw();
  }

  /** Draw everything that is in view. */
  redraw() {
    this.drawn = new Int32Array(0);
    this.draw();
  }

  /** Draw what has changed. */
  draw() {
    const { cells, pool } = this.memory;
    if (!this.context) return;
    if (!cells) {
      this.context.clearRect(0, 0, this.width, this.height);
      return;
    }
    if (this.placeOf?.length !== pool.count || (pool.groups.length > 1 && this.memory.bandsChanged)) {
      this.layOut();
      return;
    }
    const whole = this.drawn.length !== pool.count;
    if (whole) {
      this.drawn = new Int32Array(pool.count).fill(-1);
      this.context.fillStyle = this.ground;
      this.context.fillRect(0, 0, this.width, this.height);
    }
    const flashing = this.#flashing();
    const from = this.view.scrollTop;
    for (const band of this.bands) {
      if (whole && band.title) this.#heading(band, from);
      const first = Math.max(0, Math.floor((from - band.start) / this.size)) * this.columns;
      const last = Math.min(band.members.length, Math.ceil((from + this.height - band.start) / this.size) * this.columns);
      for (let place = first; place < last; place += 1) {
        const row = band.members[place];
        const code = this.#code(row, flashing);
        if (this.drawn[row] !== code) {
          this.drawn[row] = code;
          this.#cell(code, (place % this.columns) * this.size, band.start + Math.floor(place / this.columns) * this.size - from);
        }
      }
    }
  }

  /** Return the block at a point of the view, or -1. */
  at(x, y) {
    const down = y + this.view.scrollTop;
    const column = Math.floor(x / this.size);
    const band = this.bands.find((one) => down >= one.start && down < one.end);
    if (!band || column >= this.columns) return -1;
    const row = band.members[Math.floor((down - band.start) / this.size) * this.columns + column];
    return row === undefined ? -1 : row + this.memory.pool.first;
  }

  /** Return the block that stands so many cells or rows from another; it stops at the ends. */
  beside(block, cellsAway) {
    const row = block - this.memory.pool.first;
    let place = this.placeOf[row] + cellsAway;
    let band = this.bandOf[row];
    while (place < 0 && band > 0) place += this.bands[(band -= 1)].members.length;
    while (place >= this.bands[band].members.length && band < this.bands.length - 1) {
      place -= this.bands[band].members.length;
      band += 1;
    }
    const members = this.bands[band].members;
    return members[Math.max(0, Math.min(members.length - 1, place))] + this.memory.pool.first;
  }

  /** Mark a block, and bring it into view. */
  mark(block, { show = true } = {}) {
    this.marked = block;
    const row = block - (this.memory.pool?.first ?? 0);
    if (show && block >= 0 && this.placeOf && row < this.placeOf.length) {
      const band = this.bands[this.bandOf[row]];
      const top = band.start + Math.floor(this.placeOf[row] / this.columns) * this.size;
      if (top < this.view.scrollTop) this.view.scrollTop = top - this.size;
      else if (top + this.size > this.view.scrollTop + this.height) this.view.scrollTop = top + 2 * this.size - this.height;
    }
    this.draw();
  }

  #rowsHeight(count) {
    const groups = this.memory.pool.groups.length;
    const headings = groups > 1 ? (groups + 1) * (HEADING + 4 + this.size) : 0;
    return Math.ceil(count / Math.max(1, Math.floor(this.width / this.size))) * this.size + headings;
  }

  #title(group) {
    if (group === NO_GROUP) return text("bandFree");
    const known = this.memory.pool.groups[group];
    return text(known.window ? "bandWindow" : "band", { group, size: known.block_size, window: known.window });
  }

  #flashing() {
    const now = performance.now();
    const found = new Set();
    const copies = this.memory.copies;
    for (let at = copies.length - 1; at >= 0 && now - copies[at].heard < FLASH_MS; at -= 1) found.add(copies[at].dst);
    return found;
  }

  #heading(band, from) {
    this.context.fillStyle = this.textColour;
    this.context.font = "12px system-ui, sans-serif";
    this.context.textAlign = "left";
    this.context.textBaseline = "middle";
    this.context.fillText(band.title, 4, band.top + HEADING / 2 - from);
  }

  /** What a cell looks like, as a number: colour, holders that are written, outline. */
  #code(row, flashing) {
    const { cells, pool } = this.memory;
    const block = row + pool.first;
    const outline = block === this.marked ? 3 : flashing.has(block) ? 2 : this.outlined.has(block) ? 1 : 0;
    const holders = this.size >= LABELLED ? Math.min(99, cells.refs[row]) : 0;
    return this.#colour(row, block) | ((holders > 1 ? holders : 0) << 8) | (outline << 16);
  }

  #colour(row, block) {
    const { cells } = this.memory;
    const state = cells.state[row];
    if (this.colourBy === "state" || state === STATE.free || state === STATE.quarantined) return state;
    if (!this.memory.isMine(block)) return OTHER;
    if (this.colourBy === "age") return AGE_0 + ageBucket(this.memory.now - cells.used_s[row] / 10);
    const facts = this.memory.facts(cells.owner[row]);
    return facts ? HUE_0 + hueOf(facts.number) : OTHER;
  }

  #cell(code, x, y) {
    const { context, size } = this;
    const gap = size >= 5 ? 1 : 0;
    const inner = size - gap;
    context.fillStyle = this.ground;
    context.fillRect(x, y, size, size);
    context.fillStyle = this.palette[code & 0xff];
    context.fillRect(x, y, inner, inner);
    const holders = (code >> 8) & 0xff;
    if (holders) {
      context.fillStyle = this.labelColour;
      context.font = `600 ${Math.floor(size * 0.6)}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(String(holders), x + inner / 2, y + inner / 2 + 0.5);
    }
    const outline = code >> 16;
    if (outline) {
      const width = outline === 1 ? Math.max(1, size / 8) : Math.max(2, size / 5);
      context.strokeStyle = this.markColour;
      context.lineWidth = width;
      context.strokeRect(x + width / 2, y + width / 2, inner - width, inner - width);
    }
  }
}
