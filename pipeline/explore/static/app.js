// The explorer's page. Text of the store reaches the document as text nodes only, each in a direction of its own.

import { $, ask, attempt, count, element, goTo, newest, place, token, visible, words } from "./page.js";
import { occurrence, wordMaps } from "./maps.js";

// What the address says, beside what was answered: asked, sentence or text, at (its word), s, gamma and layer are the place.
const state = { about: null, asked: "", offset: 0, sentence: null, text: null, at: null, s: [], gamma: 1, layer: "", chosen: null, word: null };
let [set, opened, whole] = [[], 0, true]; // the sliders; how often a sentence was opened; whether the layers' lists are wanted, too

const shares = () => {
  const total = state.s.reduce((sum, one) => sum + one, 0) || 1;
  return state.s.map((one) => one / total);
};

function remember(entry) {
  const { asked: q, sentence, text, at: word, gamma, layer } = state;
  const s = state.s.every((one) => one === 1) ? "" : state.s.join(",");
  goTo({ q, sentence, text, word, s, gamma: gamma === 1 ? "" : gamma, layer }, entry);
}

const maps = wordMaps({
  asked: () => ({ word: state.word, s: state.s.join(","), row: state.chosen, shares: shares().map((one) => one.toFixed(2)).join(" ") }),
  chosen: () => state.layer,
  choose(name) {
    state.layer = name;
    remember(true);
  },
  open: (number, row) => open(number, row),
});

async function about() {
  const found = (state.about = await ask("about"));
  const name = found.url.replace(/\/+$/, "").split("/").pop();
  document.title = `${visible(name)} · elmo-store explore`;
  $("name").replaceChildren(words(name));
  const sample =
    found.sample === null
      ? found.reading ? "the sample is being read …" : "neighbours can't be shown"
      : found.sample === found.rows
        ? "neighbours are exact over all rows"
        : `neighbours are exact over a sample of ${count(found.sample)} of ${count(found.rows)} rows, evenly spaced blocks`;
  $("about").replaceChildren(
    `${count(found.tokens)} tokens in ${count(found.sentences)} sentences, model `, words(found.model), `; ${sample}.`,
    ...(found.problem ? [" ", words(found.problem)] : []),
  );
  $("approx-box").hidden = found.index === null;
  if (!state.s.length) {
    sliders(found);
    $("by").append(...found.fields.map((name) => element("option", { value: name }, visible(name))));
    $("by-box").hidden = !found.fields.length;
  }
  if (found.reading) return void setTimeout(() => attempt(about), 700);
  document.body.dataset.sample = "ready";
  anew();
}

function sliders(found) {
  state.s = found.layers.map(() => 1);
  if (found.kind !== "states") return;
  const add = (label, kind, most, change) => {
    const input = element("input", { type: "range", className: kind, min: 0, max: most, step: 0.01, value: 1, ariaLabel: label });
    input.addEventListener("input", () => {
      change(Number(input.value));
      showShares();
      moved();
    });
    $("sliders").append(element("label", {}, label, input, element("output", {}, "1.00")));
    return (value) => {
      input.value = value;
      change(Number(input.value));
    };
  };
  set = found.layers.map((name, k) => add(`s of ${name}`, `a${k % 5}`, 1, (value) => (state.s[k] = value)));
  set.push(add("γ", "plain", 4, (value) => (state.gamma = value)));
  $("even").addEventListener("click", () => {
    mix();
    moved();
  });
  $("shares").append(...found.layers.map((_, k) => element("i", { className: `k${k % 5}` })));
  mix();
}

// Sets the sliders: all alike, or as a place says.
function mix(s = [], gamma = 1) {
  set.forEach((one, k) => one(k < state.s.length ? (s[k] ?? 1) : gamma));
  showShares();
}

// What the sliders come to: s is 1 together.
function showShares() {
  const shown = [...shares(), state.gamma];
  document.querySelectorAll("#sliders output").forEach((output, k) => (output.textContent = shown[k].toFixed(2)));
  [...$("shares").children].forEach((part, k) => (part.style.width = `${100 * shown[k]}%`));
}

const norm = (text) => text.toLowerCase().split(/\s+/).filter(Boolean).join(" ");

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

async function find(more = false) {
  state.offset = more ? state.offset + 30 : 0;
  const { asked, offset } = state;
  const found = await ask("search", { q: asked, offset });
  if (asked !== state.asked || offset !== state.offset) return []; // something newer was asked for meanwhile
  const looked = /^(#[0-9,]+|id:.*)$/.test(asked.trim()) ? "" : norm(asked);
  const items = found.hits.map((hit) => {
    const text = element("span", {}, element("small", {}, "#", String(hit.number), " "), ...marked(hit.tokens, looked));
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => attempt(() => open(hit.number)));
    return element("li", {}, button);
  });
  if (!more) $("hits").replaceChildren();
  $("hits").append(...items);
  if (!items.length && !more) $("hits").append(element("li", {}, "no sentence has that"));
  $("more").hidden = !found.more;
  return found.hits;
}

// A sentence of the store; ``row`` of it, or its word ``at``, is chosen as if clicked. ``entry``: a new one of the history.
async function open(number, row = null, { at = null, entry = true } = {}) {
  const mine = (opened += 1);
  const found = await ask("sentence", { number });
  if (mine !== opened) return;
  $("where").replaceChildren(`#${found.number}, `, words(found.id), ", from ", words(found.source.split("/").pop()), ` (${found.position})`);
  for (const [name, value] of Object.entries(found.fields)) $("where").append("; ", words(name), ": ", words(value));
  $("where").title = visible(found.source);
  Object.assign(state, { sentence: found.number, text: null });
  show(found, (i) => String(found.first_row + i), row === null ? at : row - found.first_row, entry);
}

async function own(text, { at = null, entry = true } = {}) {
  const mine = (opened += 1);
  const found = await ask("embed", {}, { method: "POST", body: text });
  if (mine !== opened) return;
  $("where").textContent = "A sentence of your own: choose one of its words.";
  $("where").title = "";
  Object.assign(state, { sentence: null, text });
  show(found, (i) => `${found.own}:${i}`, at, entry);
}

function show(found, key, at, entry) {
  Object.assign(state, { at: null, chosen: null, word: null });
  $("near").hidden = true;
  maps.clear();
  const most = Math.max(1e-9, ...found.norms.flat());
  const choose = (i, enter) => {
    buttons.forEach((other, k) => (other.ariaPressed = String(k === i)));
    Object.assign(state, { at: i, chosen: key(i), word: found.tokens[i] });
    $("hint").hidden = true;
    remember(enter);
    return anew();
  };
  const looked = norm(state.asked).split(" ");
  const buttons = found.tokens.map((text, i) => {
    const hit = looked.includes(text.toLowerCase()) ? "hit" : "";
    const button = element("button", { type: "button", ariaPressed: "false", className: hit }, words(text), bars(found.norms[i] ?? [], most));
    button.addEventListener("click", () => choose(i, true));
    return button;
  });
  $("tokens").replaceChildren(...buttons);
  const names = state.about.layers.flatMap((name, k) => [" ", element("span", { className: "key" }, element("i", { className: `k${k % 5}` }), words(name))]);
  $("legend").replaceChildren("norm of each word in", ...names);
  $("legend").hidden = !found.norms.length;
  $("hint").hidden = false;
  $("code").textContent = found.code.split("\n").map(visible).join("\n"); // line ends of code stay
  $("code-box").hidden = false;
  const shown = buttons[at] ?? buttons.find((button) => button.className === "hit");
  if (shown) $("tokens").scrollTop = shown.offsetTop - $("tokens").offsetTop - 8;
  if (at === null || !buttons[at]) return remember(entry);
  buttons[at].focus({ preventScroll: true });
  choose(at, entry);
  $("sentence").scrollIntoView({ block: "nearest" });
}

// The norm of a word in each layer, as bars beneath it.
function bars(norms, most) {
  const group = element("span", { className: "bars", title: norms.map((one, k) => `${state.about.layers[k]}: ${one}`).join("\n") });
  norms.forEach((one, k) => {
    const bar = element("i", { className: `k${k % 5}` });
    bar.style.height = `${(100 * one) / most}%`;
    group.append(bar);
  });
  return group;
}

const neighbours = newest(async () => {
  const [token, layers, approximate] = [state.chosen, whole, $("approx").checked ? "1" : "0"];
  if (token === null) return;
  whole = false;
  const began = performance.now();
  const found = await ask("neighbours", { token, s: state.s.join(","), layers: layers ? "1" : "0", approximate });
  if (token !== state.chosen) return; // which asks again
  const box = (id, className, name, list) => {
    const items = list.map((one) => element("li", {}, occurrence(one, one.cosine.toFixed(3), open)));
    return element("div", { id, className }, element("h3", {}, words(name)), element("ol", {}, ...items));
  };
  const { kind } = state.about;
  const title = (name, k) => (k === 0 && kind === "states" ? `${name}: nearest words` : name);
  if (layers) $("lists").replaceChildren(...found.layers.map((one, k) => box(`layer${k}`, `t${k % 5}`, title(one.name, k), one.found)));
  $("mix")?.remove();
  if (found.mix) {
    $("lists").prepend(box("mix", "", "the mix", found.mix));
    $("norm").textContent = `norm of the chosen word’s mix: ${(state.gamma * found.norm).toFixed(3)}`;
  }
  $("of").textContent =
    `cosine, over ${count(found.of)} rows${approximate === "1" ? ", approximate" : ", exact"}; ` +
    `${Math.round(performance.now() - began)} ms`;
  $("near").hidden = false;
  $("mixer").hidden = kind !== "states";
  document.body.dataset.answered = String(Number(document.body.dataset.answered ?? 0) + 1);
});

// All lists and maps of the chosen word; a sample that is still being read asks again when it is there.
async function anew() {
  if (state.chosen === null || document.body.dataset.sample !== "ready") return;
  whole = true;
  await neighbours();
  await maps.anew();
}

let waiting = null;

function moved() {
  if (state.chosen !== null) {
    neighbours();
    maps.refresh();
  }
  clearTimeout(waiting);
  waiting = setTimeout(() => remember(false), 200);
}

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  state.asked = $("q").value;
  remember(true);
  attempt(() => find());
});
$("more").addEventListener("click", () => attempt(() => find(true)));
$("approx").addEventListener("change", anew);
$("by").addEventListener("change", maps.anew);
$("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the token
  $("sentence").focus();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("own").requestSubmit();
});
$("own").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("embed").disabled) return;
  $("embed").disabled = true;
  $("embed").textContent = "embedding …";
  const done = () => {
    $("embed").disabled = false;
    $("embed").textContent = "Embed";
  };
  attempt(async () => {
    await own($("text").value);
    $("tokens").firstElementChild.focus();
  }).finally(done);
});

// Goes to the place that the address says; the page begins with the store's first sentences.
async function restore(first) {
  const said = place();
  const number = (name) => (said.has(name) ? Number(said.get(name)) : null);
  mix((said.get("s") ?? "").split(",").filter(Boolean).map(Number), number("gamma") ?? 1);
  state.layer = said.get("layer") ?? "";
  const asked = said.get("q") ?? "";
  let hits = null;
  if (first || asked !== state.asked) {
    $("q").value = state.asked = asked;
    hits = await find();
  }
  const at = number("word");
  if (said.has("text")) {
    $("text").value = said.get("text");
    if (said.get("text") !== state.text || at !== state.at) await own(said.get("text"), { at, entry: false });
  } else if (said.has("sentence")) {
    if (number("sentence") !== state.sentence || at !== state.at) await open(number("sentence"), null, { at, entry: false });
  } else if (hits?.length) await open(hits[0].number, null, { entry: false });
  else if (first) $("where").textContent = "There is no sentence.";
  maps.redraw();
  moved();
}

addEventListener("popstate", () => (location.hash.slice(1).split("?")[0] === token ? attempt(() => restore(false)) : location.reload()));
attempt(async () => {
  await about();
  await restore(true);
});
