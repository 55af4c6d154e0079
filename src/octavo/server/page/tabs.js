// Tabs: arrows go from one to the next, what is not shown is not asked for.

export class Tabs {
  /** shown: by the id of a panel, what to call with true when it is shown and false when not. */
  constructor(list, shown) {
    this.tabs = [...list.querySelectorAll('[role="tab"]')];
    this.shown = shown;
    this.current = null;
    this.tabs.forEach((tab, place) => {
      tab.addEventListener("click", () => this.show(tab.getAttribute("aria-controls")));
      tab.addEventListener("keydown", (event) => {
        const steps = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: -1 };
        if (!(event.key in steps)) return;
        event.preventDefault();
        const next = this.tabs.at(steps[event.key] % this.tabs.length);
        next.focus();
        next.click();
      });
    });
    this.show(this.tabs[0].getAttribute("aria-controls"));
  }

  /** Show a panel. */
  show(panel) {
    if (panel === this.current) return;
    this.current = panel;
    for (const tab of this.tabs) {
      const name = tab.getAttribute("aria-controls");
      const chosen = name === panel;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      document.getElementById(name).hidden = !chosen;
      this.shown[name]?.(chosen);
    }
  }
}
