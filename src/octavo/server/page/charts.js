// The last hour as small charts, drawn by hand: lines over time, each with words for who cannot see them.

import { make, write } from "./dom.js";
import { ask } from "./server.js";
import { STRINGS, text } from "./strings.js";

const WIDTH = 300;
const HEIGHT = 100;
const EVERY_MS = { 1: 1000, 10: 10_000 };
const CHARTS = {
  throughput: ["output_tokens_per_s", "computed_prompt_tokens_per_s", "cached_prompt_tokens_per_s"],
  ttft: ["ttft_p50_s", "ttft_p95_s"],
  itl: ["itl_p50_s", "itl_p95_s"],
  hit: ["hit_rate"],
  memory: ["in_use", "shared", "cached", "free"],
  waste: ["waste_share"],
  queue: ["running", "waiting"],
  preemptions: ["preemptions", "evictions"],
};
const COLOURS = ["--main", "--state-3", "--state-2", "--line"];
const SVG = "http://www.w3.org/2000/svg";

const round = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(3)).toString());

class Chart {
  constructor(name, columns) {
    this.columns = columns;
    this.name = STRINGS.chartTitles[name];
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("class", "chart");
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.lines = columns.map((_, place) => {
      const line = document.createElementNS(SVG, "path");
      line.style.stroke = `var(${COLOURS[place]})`;
      if (place === 1) line.setAttribute("stroke-dasharray", "6 3");
      if (place === 2) line.setAttribute("stroke-dasharray", "2 2");
      this.svg.append(line);
      return line;
    });
    this.values = columns.map(() => make("b"));
    const keys = columns.map((column, place) => {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = `var(${COLOURS[place]})`;
      return make("span", {}, swatch, `${STRINGS.series[column]} `, this.values[place], " ");
    });
    this.most = make("span", { className: "quiet" });
    this.element = make("figure", {}, make("figcaption", {}, make("b", {}, this.name), " ", this.most, make("br"), ...keys), this.svg);
  }

  draw(told, from, to) {
    const known = this.columns.flatMap((column) => told[column].filter((value) => value !== null));
    const most = known.length ? Math.max(...known) : 0;
    write(this.most, `0 … ${round(most)}`);
    const said = this.columns.map((column, place) => {
      this.lines[place].setAttribute("d", this.#path(told.wall_s, told[column], from, to, most || 1));
      const last = told[column].at(-1) ?? null;
      write(this.values[place], round(last));
      const name = STRINGS.series[column];
      const highest = told[column].reduce((high, value) => (value !== null && (high === null || value > high) ? value : high), null);
      return highest === null ? text("chartNone", { name }) : text("chartLast", { name, value: round(last), most: round(highest) });
    });
    this.svg.setAttribute("aria-label", `${this.name}. ${said.join("; ")}`);
  }

  #path(times, values, from, to, most) {
    let path = "";
    let pen = "M";
    for (let at = 0; at < values.length; at += 1) {
      if (values[at] === null) {
        pen = "M";
        continue;
      }
      const x = ((times[at] - from) / (to - from)) * WIDTH;
      path += `${pen}${x.toFixed(1)} ${(HEIGHT - 3 - (values[at] / most) * (HEIGHT - 6)).toFixed(1)}`;
      // A point alone is a short line.
      if (pen === "M") path += "h1";
      pen = "L";
    }
    return path;
  }
}

export class Charts {
  constructor(panel) {
    this.step = 1;
    this.timer = 0;
    this.said = make("p", { className: "quiet", role: "status" }, text("chartsEmpty"));
    const ranges = [[1, "rangeMinutes"], [10, "rangeHour"]].map(([value, name]) => make("option", { value }, text(name)));
    const select = make("select", { id: "charts-range", onchange: () => this.#range(Number(select.value)) }, ...ranges);
    this.charts = Object.entries(CHARTS).map(([name, columns]) => new Chart(name, columns));
    this.grid = make("div", { className: "grid" }, ...this.charts.map((chart) => chart.element));
    panel.append(make("label", {}, text("chartsRange"), select), this.said, this.grid);
  }

  /** Ask from time to time while the panel is looked at. */
  show(shown) {
    clearTimeout(this.timer);
    this.shown = shown;
    if (shown) this.#look();
  }

  #range(step) {
    this.step = step;
    this.show(true);
  }

  async #look() {
    const step = this.step;
    if (!document.hidden) {
      try {
        const told = await (await ask(`v1/debug/memory/history?step=${step}`, { admin: true })).json();
        if (step !== this.step) return;
        write(this.said, told.points ? "" : text("chartsEmpty"));
        const to = told.wall_s.at(-1) ?? Date.now() / 1000;
        for (const chart of this.charts) chart.draw(told, to - (step === 1 ? 300 : 3600), to);
      } catch (error) {
        write(this.said, error.status ? text("chartsRefused", { reason: error.message }) : text("troubleLost"));
      }
    }
    clearTimeout(this.timer);
    if (this.shown) this.timer = setTimeout(() => this.#look(), EVERY_MS[step]);
  }
}
