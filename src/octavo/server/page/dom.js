// Elements made and filled; texts go in as texts, never as markup.

import { text } from "./strings.js";

export const byId = (id) => document.getElementById(id);

/** Make an element: properties that begin with "on" are listeners, "data-…" and "aria-…" attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Write all texts and labels that the document names. */
export function fillTexts(root = document) {
  for (const element of root.querySelectorAll("[data-text]")) {
    element.textContent = text(element.dataset.text);
  }
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", text(element.dataset.label));
  }
}

/** Set a text if it is another: what has not changed is not spoken again. */
export function write(element, said) {
  if (element.textContent !== said) element.textContent = said;
}

/** Write a span of time as people say it. */
export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 100) return text("seconds", { n: s < 10 ? s.toFixed(1) : Math.round(s) });
  if (s < 6000) return text("minutes", { n: Math.round(s / 60) });
  return text("hours", { n: (s / 3600).toFixed(1) });
}

/** Write a share as a percentage. */
export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);

/** Call `what` at most once in so many milliseconds, and always after the last call. */
export function atMostEvery(ms, what) {
  let timer = 0;
  let last = -Infinity;
  return () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      last = performance.now();
      what();
    }, Math.max(0, last + ms - performance.now()));
  };
}
