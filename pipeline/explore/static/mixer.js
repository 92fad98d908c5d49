// The sliders of s and γ.

import { $, colour, decimal, element } from "./page.js";

export const NO_MIX = "All sliders of s are at 0: there is no mix. Move one up.";

// What weights come to: 1 together.
export function shares(s) {
  const total = s.reduce((sum, one) => sum + one, 0) || 1;
  return s.map((one) => one / total);
}

// A mix of these layers, which the sliders change; without sliders where a store's columns are mixes. ``moved()`` is called after.
export function mixer(layers, sliders, moved) {
  const mix = { s: layers.map(() => 1), gamma: 1, set, isEven: () => mix.s.every((one) => one === 1), isNone: () => mix.s.every((one) => one === 0) };
  const setters = [];

  function show() {
    const shown = [...shares(mix.s), mix.gamma];
    document.querySelectorAll("#sliders output").forEach((output, k) => (output.textContent = decimal(shown[k])));
    [...$("shares").children].forEach((part, k) => (part.style.width = `${100 * shown[k]}%`));
  }

  // All alike, or as a place says; returns whether that changed the mix.
  function set(s = [], gamma = 1) {
    const before = String([mix.s, mix.gamma]);
    setters.forEach((one, k) => one(k < mix.s.length ? (s[k] ?? 1) : gamma));
    show();
    return before !== String([mix.s, mix.gamma]);
  }

  function add(label, kind, most, change) {
    const input = element("input", { type: "range", className: kind, min: 0, max: most, step: 0.01, value: 1, ariaLabel: label });
    input.addEventListener("input", () => {
      change(Number(input.value));
      show();
      moved();
    });
    $("sliders").append(element("label", {}, label, input, element("output", {}, "1.00")));
    setters.push((value) => {
      input.value = value;
      change(Number(input.value));
    });
  }

  if (sliders) {
    layers.forEach((name, k) => add(`s of ${name}`, colour(k), 1, (value) => (mix.s[k] = value)));
    add("γ", "", 4, (value) => (mix.gamma = value));
    $("shares").append(...layers.map((_, k) => element("i", { className: colour(k) })));
    $("even").addEventListener("click", () => {
      set();
      moved();
    });
    show();
  }
  return mix;
}
