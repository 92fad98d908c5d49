// Sentences by words, number or id: a list of buttons, what was looked for marked in each.

import { $, ask, attempt, element, roving, words } from "./page.js";

export const norm = (text) => text.toLowerCase().split(/\s+/).filter(Boolean).join(" ");

// What was looked for, marked; what stands far before it is left out.
function marked(tokens, asked) {
  const text = tokens.join(" ");
  const at = asked ? ` ${norm(text)} `.indexOf(` ${asked} `) : -1;
  const from = at >= 0 || !asked ? at : text.toLowerCase().indexOf(asked);
  if (from < 0 || text.length !== text.toLowerCase().length) return [words(text)];
  const cut = from > 60 ? text.indexOf(" ", from - 40) + 1 : 0;
  const to = from + asked.length;
  return [words((cut ? "… " : "") + text.slice(cut, from)), element("mark", {}, words(text.slice(from, to))), words(text.slice(to))];
}

// Sentences as items of a list, each a button that calls ``open(number)``.
function hitItems(hits, asked, open) {
  const looked = /^(#[0-9,]+|id:.*)$/.test(asked.trim()) ? "" : norm(asked);
  return hits.map((hit) => {
    const text = element("span", {}, element("small", {}, "#", String(hit.number), " "), ...marked(hit.tokens, looked));
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => attempt(() => open(hit.number)));
    return element("li", {}, button);
  });
}

// ``find(asked)`` fills the page's list and returns what it found; nothing where something newer was asked for meanwhile.
export function finder(open) {
  let [wanted, offset] = ["", 0];
  roving($("hits"));

  async function find(asked, more = false) {
    [wanted, offset] = [asked, more ? offset + 30 : 0];
    const from = offset;
    const found = await ask("search", { q: asked, offset });
    if (asked !== wanted || from !== offset) return [];
    const items = hitItems(found.hits, asked, open);
    if (!more) $("hits").replaceChildren();
    $("hits").append(...items);
    if (!items.length && !more) $("hits").append(element("li", {}, "no sentence has that"));
    $("more").hidden = !found.more;
    return found.hits;
  }

  $("more").addEventListener("click", () => attempt(() => find(wanted, true)));
  return find;
}
