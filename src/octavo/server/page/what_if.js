// The requests of now, had memory been reserved for them as regions: what paging saves.

import { make, write } from "./dom.js";
import { STRINGS, text } from "./strings.js";

export class WhatIf {
  constructor(panel, memory) {
    this.memory = memory;
    this.rule = "max";
    const options = Object.entries(STRINGS.rules).map(([value, name]) => make("option", { value }, name));
    const select = make("select", { id: "rule", onchange: () => { this.rule = select.value; this.draw(); } }, ...options);
    this.switch = make("span", { id: "rule-words" });
    this.said = make("p", { className: "quiet" });
    this.paged = this.#bar("what-if-paged");
    this.reserved = this.#bar("what-if-reserved");
    this.bars = make("div", { className: "bars" }, this.paged.element, this.reserved.element);
    panel.append(make("label", {}, this.switch, select), this.said, this.bars);
    this.draw();
  }

  draw() {
    const { whatIf, pool, frame } = this.memory;
    const known = whatIf && whatIf.sequences > 0;
    write(this.switch, text("whatIfSwitch", { n: whatIf?.sequences ?? 0 }));
    write(this.said, known ? "" : text(frame?.scope === "tenant" ? "whatIfHidden" : "whatIfEmpty"));
    this.bars.hidden = !known;
    if (!known) return;
    const { sequences: n, paged } = whatIf;
    const rule = whatIf[this.rule];
    const most = Math.max(pool.blocks, rule.blocks);
    this.#draw(this.paged, paged.blocks, most, text("whatIfPaged", paged));
    const least = rule.exact ? "" : text("whatIfLeast");
    this.#draw(this.reserved, rule.blocks, most, text("whatIfRule", { ...rule, rule: this.rule, least, n }), pool.blocks);
  }

  #bar(id) {
    const words = make("label", { for: id });
    const meter = make("meter", { id, min: 0 });
    return { element: make("div", {}, words, meter), words, meter };
  }

  #draw(bar, blocks, most, words, room = most) {
    write(bar.words, words);
    bar.meter.max = most;
    bar.meter.high = room;
    bar.meter.optimum = 0;
    bar.meter.value = blocks;
  }
}
