// The page: a stream of the memory, another of what is followed, and what is made of them.

import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { atMostEvery, byId, fillTexts, write } from "./dom.js";
import { Live } from "./live.js";
import { MapView } from "./map_view.js";
import { Memory } from "./memory.js";
import { Requests } from "./requests.js";
import { keys } from "./server.js";
import { text } from "./strings.js";
import { Tabs } from "./tabs.js";
import { Prefixes } from "./tree.js";
import { WhatIf } from "./what_if.js";

const NODES = 100;
const READY = new Set(["ready", "paused"]);

class App {
  constructor() {
    this.engine = "ready";
    this.link = "connecting";
    this.memory = new Memory();
    this.mapView = new MapView(this.memory);
    this.chat = new Chat({
      follow: (request) => this.#follow(request),
      numberOf: (request) => this.#numberOf(request),
    });
    this.side = new Memory();
    this.followed = null;
    this.requests = new Requests(byId("requests"), this.memory, this.side, (request) => this.#follow(request));
    this.prefixes = new Prefixes(byId("tree"), this.side);
    this.charts = new Charts(byId("charts"));
    this.whatIf = new WhatIf(byId("what-if"), this.memory);
    this.drawSoon = atMostEvery(250, () => this.#draw());
    this.sideLive = new Live(() => this.#sidePath(), { event: (kind, data) => this.#sideEvent(kind, data) });
    this.tabs = new Tabs(document.querySelector(".tabs"), {
      requests: () => this.drawSoon(),
      tree: (shown) => {
        this.sideLive.reopen();
        if (shown) this.prefixes.open();
      },
      charts: (shown) => this.charts.show(shown),
      "what-if": () => this.drawSoon(),
    });
    this.live = new Live(() => "v1/debug/memory/events?hz=10", {
      event: (kind, data) => this.#event(kind, data),
      status: (kind, detail) => this.#status(kind, detail),
    });
    this.#keys();
    this.live.start();
    this.sideLive.start();
  }

  /** What is asked for beside the map: a request's table, and the tree while it is looked at. */
  #sidePath() {
    const tree = this.tabs?.current === "tree";
    if (this.followed === null && !tree) return null;
    const follow = this.followed === null ? "" : `&follow=${encodeURIComponent(this.followed)}`;
    return `v1/debug/memory/events?cells=none${follow}${tree ? `&tree=${NODES}` : ""}`;
  }

  #sideEvent(kind, data) {
    if (kind === "state") return;
    if (!this.side.takeIn(data)) this.sideLive.reopen();
    this.mapView.outline(this.requests.blocks());
    this.requests.drawFollowed();
    if (this.tabs.current === "tree") this.prefixes.draw();
  }

  #follow(request) {
    this.followed = request;
    this.side.forget();
    this.mapView.outline(new Set());
    this.tabs.show("requests");
    this.requests.follow(request);
    this.sideLive.reopen();
  }

  #draw() {
    if (this.tabs.current === "requests") this.requests.draw();
    if (this.tabs.current === "what-if") this.whatIf.draw();
  }

  #event(kind, data) {
    if (kind === "state") {
      this.engine = data.state;
      this.#write("live");
      return;
    }
    if (!this.memory.takeIn(data)) {
      this.live.reopen();
      return;
    }
    if (kind === "snapshot" || this.link !== "live") {
      this.engine = data.paused ? "paused" : "ready";
      write(byId("model"), this.memory.pool.model);
      this.chat.model = this.memory.pool.model;
    }
    this.#write("live", undefined, data.paused);
    this.mapView.update();
    this.drawSoon();
  }

  #numberOf(request) {
    for (const facts of [...this.memory.sequences.values(), ...this.memory.ended.values()]) {
      if (facts.request === request) return facts.number;
    }
    return null;
  }

  #status(kind, detail) {
    if (kind === "needs-key" && !byId("keys").open) this.#askForKeys();
    this.#write(kind, detail);
  }

  #write(link, detail, paused = false) {
    this.link = link;
    const gone = link === "live" && !READY.has(this.engine);
    const words = {
      live: gone ? text("statusEngine", { state: this.engine }) : text(paused ? "statusPaused" : "statusLive"),
      connecting: text("statusConnecting"),
      hidden: text("statusHidden"),
      "needs-key": text("statusNeedsKey"),
      refused: text("troubleRefused", { reason: detail }),
      lost: text("statusRetry", { seconds: Math.max(1, Math.round(detail)) }),
    };
    const kinds = { live: gone ? "bad" : "live", connecting: "busy" };
    byId("status").dataset.kind = kinds[link] ?? "bad";
    write(byId("status"), words[link]);
    const trouble = {
      live: gone ? text("troubleEngine", { state: this.engine }) : "",
      "needs-key": text("troubleKey"),
      refused: words.refused,
      lost: text("troubleLost"),
    }[link];
    if (trouble === undefined) return;
    write(byId("trouble"), trouble);
    byId("trouble").hidden = !trouble;
  }

  #keys() {
    const dialog = byId("keys");
    byId("keys-open").addEventListener("click", () => this.#askForKeys());
    byId("keys-close").addEventListener("click", () => dialog.close());
    byId("keys-forget").addEventListener("click", () => this.#useKeys("", ""));
    byId("keys-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#useKeys(byId("key").value.trim(), byId("admin-key").value.trim());
    });
  }

  #askForKeys() {
    byId("key").value = keys.own;
    byId("admin-key").value = keys.admin;
    byId("keys").showModal();
  }

  #useKeys(own, admin) {
    keys.keep(own, admin);
    byId("keys").close();
    this.memory.forget();
    this.mapView.update();
    this.live.reopen();
    this.sideLive.reopen();
    this.drawSoon();
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(localStorage.getItem("octavo.theme") ?? (dark.matches ? "dark" : "light"));
  fillTexts();
  const app = new App();
  byId("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("octavo.theme", theme);
    setTheme(theme);
    app.mapView.recolour();
  });
  dark.addEventListener("change", () => {
    if (localStorage.getItem("octavo.theme")) return;
    setTheme(dark.matches ? "dark" : "light");
    app.mapView.recolour();
  });
}

start();
