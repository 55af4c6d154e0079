// The texts in memory as a tree of prefixes, and pins: made and ended from here.

import { make, span, write } from "./dom.js";
import { ask, keys } from "./server.js";
import { text } from "./strings.js";

const PINS = "v1/cache/pins";

export class Prefixes {
  constructor(panel, side) {
    this.side = side;
    this.shown = null;
    this.total = make("p", { className: "quiet", id: "tree-total" }, text("treeEmpty"));
    this.said = make("p", { role: "status", id: "tree-said" });
    this.list = make("ul", { className: "nodes", id: "nodes" });
    this.pins = make("ul", { id: "pins" });
    panel.append(this.total, this.said, make("div", { className: "wide" }, this.list), make("h3", {}, text("pins")), this.pins);
  }

  /** The panel is looked at. */
  open() {
    this.#listPins();
  }

  /** Draw the tree, if it is another; not while somebody writes a name into it. */
  draw() {
    const tree = this.side.tree;
    if (!tree || tree === this.shown || this.list.querySelector("input")) return;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.node : null;
    this.shown = tree;
    write(this.total, tree.nodes.length ? text("treeTotal", { shown: tree.shown, total: tree.total }) : text("treeEmpty"));
    const places = new Map();
    const roots = [];
    for (const node of tree.nodes) places.set(node.node, { node, below: [] });
    for (const place of places.values()) {
      (places.get(place.node.parent)?.below ?? roots).push(place);
    }
    this.list.replaceChildren(...roots.map((place) => this.#node(place)));
    if (focused) this.list.querySelector(`[data-node="${focused}"]`)?.focus();
  }

  #node({ node, below }) {
    const words = text("treeNode", { ...node, age: span(this.side.now - node.used_s) });
    const button = make("button", { type: "button", "data-node": String(node.node), onclick: () => this.#name(row, button, node) }, text("pin"));
    const row = make("div", {}, make("span", {}, words), button);
    const item = make("li", {}, row);
    if (below.length) item.append(make("ul", {}, ...below.map((place) => this.#node(place))));
    return item;
  }

  /** Ask for the name of a pin. */
  #name(row, button, node) {
    const field = make("input", { "aria-label": text("pinName"), value: `block-${node.last}`, maxLength: 256 });
    const form = make("form", { onsubmit: (event) => { event.preventDefault(); this.#pin(node, field.value, form); } },
      field, make("button", { type: "submit" }, text("pin")));
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      form.replaceWith(button);
      button.focus();
    });
    button.replaceWith(form);
    field.select();
  }

  async #pin(node, name, form) {
    await this.#try(async () => {
      const told = await (await ask(`v1/debug/memory/blocks/${node.last}?prefix=true`, { admin: !keys.own })).json();
      if (!told.prefix_tokens) throw new Error(text("pinNoText"));
      await ask(PINS, { body: { name, prompt: told.prefix_tokens } });
      write(this.said, text("pinDone", { name }));
    });
    form.remove();
    this.shown = null;
    this.draw();
  }

  async #listPins() {
    await this.#try(async () => {
      const { data } = await (await ask(PINS, { admin: true })).json();
      const items = data.map((pin) => make("li", {},
        text("pinLine", { ...pin, tenant: pin.tenant ?? "–" }), " ",
        make("button", { type: "button", onclick: () => this.#unpin(pin) }, text("unpin"))));
      this.pins.replaceChildren(...(items.length ? items : [make("li", { className: "quiet" }, text("pinsNone"))]));
    }, false);
  }

  async #unpin({ name, tenant }) {
    await this.#try(async () => {
      const whose = tenant ? `?tenant=${encodeURIComponent(tenant)}` : "";
      await ask(`${PINS}/${encodeURIComponent(name)}${whose}`, { method: "DELETE", admin: true });
      write(this.said, text("unpinned", { name }));
    });
  }

  async #try(what, list = true) {
    try {
      await what();
    } catch (error) {
      write(this.said, text("failed", { reason: error.message }));
    }
    if (list) await this.#listPins();
  }
}
