// The explorer's page. Text of the store reaches the document as text nodes only, each in a direction of its own.

import { $, address, ask, attempt, colour, count, decimal, element, goTo, newest, numbers, roving, token, visible, words } from "./page.js";
import { finder, norm } from "./find.js";
import { occurrence, wordMaps } from "./maps.js";
import { mixer, NO_MIX, shares } from "./mixer.js";

// What was answered, and what of it is chosen; asked, sentence or text, and at (its word) stand in the address.
const state = { about: null, asked: "", sentence: null, text: null, at: null, chosen: null, word: null, code: "" };
let [mix, opened, layersWanted] = [null, 0, true]; // how often a sentence was opened; whether the layers' lists are wanted, too

function remember(entry) {
  const { asked: q, sentence, text, at: word } = state;
  const [s, gamma] = [mix.isEven() ? "" : mix.s.join(","), mix.gamma === 1 ? "" : mix.gamma];
  goTo({ q, sentence, text, word, s, gamma, ...maps.address() }, entry);
}

const maps = wordMaps({
  asked: () => ({ word: state.word, s: [...mix.s], gamma: mix.gamma, row: state.chosen, none: mix.isNone() }),
  about: () => state.about,
  open: openPoint,
  changed: () => remember(true),
  regroup: () => anew(),
  take(s) {
    mix.set(s, mix.gamma);
    moved();
  },
});
const find = finder((number) => open(number, null, { focus: true }));
for (const id of ["tokens", "lists"]) roving($(id));

async function about() {
  const answer = (state.about = await ask("about"));
  const name = answer.url.replace(/\/+$/, "").split("/").pop();
  document.title = `${visible(name)} · elmo-store explore`;
  $("name").replaceChildren(words(name));
  const sample =
    answer.sample === null
      ? answer.reading ? "the sample is being read …" : "neighbours can't be shown"
      : answer.sample === answer.rows
        ? "neighbours are exact over all rows"
        : `neighbours are exact over a sample of ${count(answer.sample)} of ${count(answer.rows)} rows, evenly spaced blocks`;
  $("about").replaceChildren(
    `${count(answer.tokens)} tokens in ${count(answer.sentences)} sentences, model `, words(answer.model), `; ${sample}.`,
    ...(answer.problem ? [" ", words(answer.problem)] : []),
  );
  if (!mix) {
    mix = mixer(answer.layers, answer.kind === "states", moved);
    $("by").append(...answer.fields.map((name) => element("option", { value: name }, visible(name))));
    $("by-box").hidden = !answer.fields.length;
  }
  if (answer.reading) return void setTimeout(() => attempt(about), 700);
  document.body.dataset.sample = "ready";
  anew();
}

// A sentence of the store; ``row`` of it, or its word ``at``, is chosen as if clicked. ``entry``: a new one of the history. ``focus``
// goes to the word that was looked for; ``keep`` leaves it, and what is in view, where it is.
async function open(number, row = null, { at = null, entry = true, focus = false, keep = false } = {}) {
  const turn = (opened += 1);
  const answer = await ask("sentence", { number });
  if (turn !== opened) return;
  $("where").replaceChildren(`#${answer.number}, `, words(answer.id), ", from ", words(answer.source.split("/").pop()), ` (${answer.position})`);
  for (const [name, value] of Object.entries(answer.fields)) $("where").append("; ", words(name), ": ", words(value));
  $("where").title = visible(answer.source);
  Object.assign(state, { sentence: answer.number, text: null });
  return show(answer, (i) => String(answer.first_row + i), row === null ? at : row - answer.first_row, { entry, focus, keep });
}

// What is above the map may have another height with another sentence.
async function openPoint(number, row) {
  const top = () => $("word").getBoundingClientRect().top;
  const before = top();
  await open(number, row, { keep: true });
  scrollBy(0, top() - before);
}

async function own(text, { at = null, entry = true } = {}) {
  const turn = (opened += 1);
  const answer = await ask("embed", {}, { method: "POST", body: text });
  if (turn !== opened) return;
  $("where").textContent = "A sentence of your own: choose one of its words.";
  $("where").title = "";
  Object.assign(state, { sentence: null, text });
  return show(answer, (i) => `${answer.own}:${i}`, at, { entry });
}

function show(answer, key, at, { entry, focus = false, keep = false }) {
  if (!keep || answer.tokens[at] !== state.word) {
    state.word = null;
    $("near").hidden = true;
    maps.clear();
  }
  Object.assign(state, { at: null, chosen: null });
  const most = Math.max(1e-9, ...answer.norms.flat());
  const choose = (i, enter) => {
    buttons.forEach((other, k) => (other.ariaPressed = String(k === i)));
    Object.assign(state, { at: i, chosen: key(i), word: answer.tokens[i] });
    $("hint").hidden = true;
    remember(enter);
    return anew();
  };
  const looked = norm(state.asked).split(" ");
  const buttons = answer.tokens.map((text, i) => {
    const hit = looked.includes(text.toLowerCase()) ? "hit" : "";
    const button = element("button", { type: "button", ariaPressed: "false", className: hit }, words(text), bars(answer.norms[i] ?? [], most));
    button.addEventListener("click", () => choose(i, true));
    return button;
  });
  $("tokens").replaceChildren(...buttons);
  const names = state.about.layers.flatMap((name, k) => [" ", element("span", { className: "key" }, element("i", { className: colour(k) }), words(name))]);
  $("legend").replaceChildren("norm of each word in", ...names);
  $("legend").hidden = !answer.norms.length;
  $("hint").hidden = false;
  state.code = answer.code.split("\n").map(visible).join("\n"); // line ends of code stay
  showCode();
  $("code-box").hidden = false;
  const shown = buttons[at] ?? buttons.find((button) => button.className === "hit");
  if (shown) $("tokens").scrollTop = shown.offsetTop - $("tokens").offsetTop - 8;
  if (!keep && (entry || at !== null)) $("sentence").scrollIntoView({ block: "nearest" });
  if (at === null || !buttons[at]) {
    if (focus) (shown ?? buttons[0])?.focus({ preventScroll: true });
    return remember(entry);
  }
  if (!keep) buttons[at].focus({ preventScroll: true });
  return choose(at, entry);
}

function showCode() {
  const known = state.code.replace("(s=S, gamma=GAMMA)", `(s=[${shares(mix.s).join(", ")}], gamma=${mix.gamma})`);
  $("code").textContent = mix.isNone() ? NO_MIX : known;
}

// The norm of a word in each layer, as bars beneath it.
function bars(norms, most) {
  const group = element("span", { className: "bars", title: norms.map((one, k) => `${state.about.layers[k]}: ${decimal(one)}`).join("\n") });
  norms.forEach((one, k) => {
    const bar = element("i", { className: colour(k) });
    bar.style.height = `${(100 * one) / most}%`;
    group.append(bar);
  });
  return group;
}

const neighbours = newest(async () => {
  const [chosen, layers] = [state.chosen, layersWanted];
  if (chosen === null) return;
  layersWanted = false;
  const began = performance.now();
  const s = mix.isNone() ? {} : { s: mix.s.join(",") };
  const answer = await ask("neighbours", { token: chosen, ...s, by: $("by").value, layers: layers ? "1" : "0" });
  if (chosen !== state.chosen) return; // which asks again
  const box = (id, className, name, list) => {
    const items = list.map((one) => element("li", {}, occurrence(one, decimal(one.cosine, 3), open)));
    return element("div", { id, className }, element("h3", {}, words(name)), element("ol", {}, ...items));
  };
  const { kind } = state.about;
  const none = kind === "states" && mix.isNone();
  const title = (name, k) => (k === 0 && kind === "states" ? `${name}: words` : name);
  if (layers) $("lists").replaceChildren(...answer.layers.map((one, k) => box(`layer${k}`, colour(k), title(one.name, k), one.found)));
  $("mix")?.remove();
  if (none) {
    $("lists").prepend(element("div", { id: "mix" }, element("h3", {}, "the mix"), element("p", { className: "note" }, NO_MIX)));
    $("norm").textContent = "";
  }
  if (answer.mix) {
    $("lists").prepend(box("mix", "", "the mix", answer.mix));
    $("norm").textContent = `norm of the chosen word’s mix: ${decimal(mix.gamma * answer.norm)}`;
  }
  $("of").textContent = `cosine, over ${count(answer.of)} rows, exact; ${Math.round(performance.now() - began)} ms`;
  $("near").hidden = false;
  $("mixer").hidden = kind !== "states";
  if (layers && $("near").getBoundingClientRect().top > innerHeight / 2) $("sentence").scrollIntoView(); // on a phone
});

// All lists and maps of the chosen word; a sample that is still being read asks again when it is there.
async function anew() {
  if (state.chosen === null || document.body.dataset.sample !== "ready") return;
  layersWanted = true;
  await neighbours();
  await maps.anew();
}

let waiting = null;

function moved() {
  if (state.chosen !== null) {
    neighbours();
    maps.refresh();
  }
  showCode();
  clearTimeout(waiting);
  waiting = setTimeout(() => remember(false), 200);
}

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  state.asked = $("q").value;
  remember(true);
  attempt(() => find(state.asked));
});
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
  const parameters = address();
  const number = (name) => (parameters.has(name) ? Number(parameters.get(name)) : null);
  const remixed = mix.set(numbers(parameters.get("s")), number("gamma") ?? 1);
  const redraw = maps.restore(parameters);
  const asked = parameters.get("q") ?? "";
  let hits = null;
  if (first || asked !== state.asked) {
    $("q").value = state.asked = asked;
    hits = await find(asked);
  }
  const at = number("word");
  if (parameters.has("text")) {
    $("text").value = parameters.get("text");
    if (parameters.get("text") !== state.text || at !== state.at) await own(parameters.get("text"), { at, entry: false });
  } else if (parameters.has("sentence")) {
    if (number("sentence") !== state.sentence || at !== state.at) await open(number("sentence"), null, { at, entry: false });
  } else if (hits?.length) await open(hits[0].number, null, { entry: false });
  else if (first) $("where").textContent = "There is no sentence.";
  if (first) return; // all is drawn by what was opened
  await redraw();
  if (remixed) moved();
}

addEventListener("popstate", () => (location.hash.slice(1).split("?")[0] === token ? attempt(() => restore(false)) : location.reload()));
attempt(async () => {
  await about();
  await restore(true);
});
