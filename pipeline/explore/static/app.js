// The explorer's page. Text of the store reaches the document as text nodes only, each in a direction of its own.

const token = location.hash.slice(1);
const $ = (id) => document.getElementById(id);
const state = { about: null, chosen: null, s: [], gamma: 1, offset: 0, asked: "", word: null };

const TURNING = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g;
const visible = (text) =>
  String(text).replace(TURNING, (c) => `‹U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const words = (text) => element("bdi", {}, visible(text));

async function ask(path, parameters = {}, options = {}) {
  const response = await fetch(`api/${path}?${new URLSearchParams(parameters)}`, { ...options, headers: { "x-elmo-token": token } });
  const answer = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// What fails is told in one place, and does not end the page.
async function attempt(work) {
  try {
    await work();
    $("problem").hidden = true;
  } catch (error) {
    if (error.name === "AbortError") return;
    $("problem").textContent = visible(error.message);
    $("problem").hidden = false;
  }
}

async function about() {
  const found = (state.about = await ask("about"));
  const name = found.url.replace(/\/+$/, "").split("/").pop();
  document.title = `${visible(name)} · elmo-store explore`;
  $("name").replaceChildren(words(name));
  const number = (n) => n.toLocaleString("en");
  const sample =
    found.sample === null
      ? "the sample is being read …"
      : found.sample === found.rows
        ? "neighbours are exact over all rows"
        : `neighbours are exact over a sample of ${number(found.sample)} of ${number(found.rows)} rows, evenly spaced blocks`;
  $("about").replaceChildren(
    `${number(found.tokens)} tokens in ${number(found.sentences)} sentences, model `, words(found.model), `; ${sample}.`,
  );
  if (found.problem) {
    $("problem").textContent = visible(found.problem);
    $("problem").hidden = false;
  }
  $("approx-box").hidden = found.index === null;
  if (!state.s.length) sliders(found);
  if (found.sample === null && !found.problem) setTimeout(() => attempt(about), 700);
  else document.body.dataset.sample = "ready";
}

function sliders(found) {
  state.s = found.layers.map(() => 1);
  if (found.kind !== "states") return;
  const add = (label, value, most, change) => {
    const shown = element("output", {}, value.toFixed(2));
    const input = element("input", { type: "range", min: 0, max: most, step: 0.01, value, ariaLabel: label });
    input.addEventListener("input", () => {
      change(Number(input.value));
      shown.textContent = Number(input.value).toFixed(2);
      moved();
    });
    $("sliders").append(element("label", {}, label, input, shown));
  };
  found.layers.forEach((name, k) => add(`s of ${name}`, 1, 1, (value) => (state.s[k] = value)));
  add("γ", 1, 4, (value) => (state.gamma = value));
}

async function find(more = false) {
  state.offset = more ? state.offset + 30 : 0;
  state.asked = more ? state.asked : $("q").value;
  const found = await ask("search", { q: state.asked, offset: state.offset });
  const items = found.hits.map((hit) => {
    const button = element("button", { type: "button" }, element("small", {}, "#", String(hit.number), " "), words(hit.tokens.join(" ")));
    button.addEventListener("click", () => attempt(() => open(hit.number)));
    return element("li", {}, button);
  });
  if (!more) $("hits").replaceChildren();
  $("hits").append(...items);
  if (!items.length && !more) $("hits").append(element("li", {}, "no sentence has that"));
  $("more").hidden = !found.more;
}

async function open(number, place = null) {
  const found = await ask("sentence", { number });
  $("where").replaceChildren(`#${found.number}, `, words(found.id), ", from ", words(found.source.split("/").pop()), ` (${found.position})`);
  $("where").title = visible(found.source);
  show(found, (i) => String(found.first_row + i), place);
}

function show(found, key, place) {
  const buttons = found.tokens.map((text, i) => {
    const button = element("button", { type: "button", ariaPressed: "false" }, words(text));
    button.addEventListener("click", () => {
      buttons.forEach((other) => (other.ariaPressed = String(other === button)));
      state.chosen = key(i);
      state.word = text;
      attempt(() => neighbours(true));
    });
    return button;
  });
  $("tokens").replaceChildren(...buttons);
  norms(found);
  $("code").textContent = visible2(found.code);
  $("code-box").hidden = false;
  if (place !== null && buttons[place]) buttons[place].click();
}

// Line ends of code stay.
const visible2 = (text) => text.split("\n").map(visible).join("\n");

function norms(found) {
  const most = Math.max(1e-9, ...found.norms.flat());
  $("bars").replaceChildren(
    ...found.norms.map((layers, i) => {
      const group = element("span", { className: "bars", title: `${visible(found.tokens[i])}: ${layers.join(", ")}` });
      layers.forEach((norm, k) => {
        const bar = element("i", { className: `k${k % 5}` });
        bar.style.height = `${(100 * norm) / most}%`;
        group.append(bar);
      });
      return group;
    }),
  );
  $("norms").hidden = !found.norms.length;
  $("norms").firstElementChild.textContent = `Norms by word: ${state.about.layers.join(", ")}, left to right; highest ${most.toFixed(2)}`;
}

let last = null;

// Only the newest question counts: a slider asks faster than an answer comes.
async function neighbours(layers) {
  if (state.chosen === null) return;
  last?.abort();
  const mine = (last = new AbortController());
  const began = performance.now();
  const approximate = $("approx").checked ? "1" : "0";
  const parameters = { token: state.chosen, s: state.s.join(","), layers: layers ? "1" : "0", approximate };
  const found = await ask("neighbours", parameters, { signal: mine.signal });
  const box = (id, name, list) => {
    const box = element("div", { id }, element("h3", {}, words(name)));
    box.append(element("ol", {}, ...list.map((one) => element("li", {}, occurrence(one, one.cosine.toFixed(3))))));
    return box;
  };
  if (layers) $("lists").replaceChildren(...found.layers.map((one, k) => box(`layer${k}`, one.name, one.found)));
  $("mix")?.remove();
  if (found.mix) {
    $("lists").prepend(box("mix", "the mix", found.mix));
    $("norm").textContent = `norm of the chosen word's mix: ${(state.gamma * found.norm).toFixed(3)}`;
  }
  $("of").textContent =
    `cosine, over ${found.of.toLocaleString("en")} rows${approximate === "1" ? ", approximate" : ", exact"}; ` +
    `${Math.round(performance.now() - began)} ms`;
  $("near").hidden = false;
  $("mixer").hidden = state.about.kind !== "states";
  document.body.dataset.answered = String(Number(document.body.dataset.answered ?? 0) + 1);
  if (layers) await occurrences();
}

function occurrence(one, label) {
  const button = element("button", { type: "button" }, element("small", {}, label));
  button.append(words(one.before), " ", element("b", {}, words(one.word)), " ", words(one.after));
  button.addEventListener("click", () => attempt(() => open(one.sentence)));
  return button;
}

async function occurrences() {
  const found = await ask("word", { word: state.word, s: state.s.join(",") }).catch((error) => ({ error: error.message }));
  $("word").hidden = false;
  $("h-word").replaceChildren("Occurrences of ", words(state.word));
  $("map").replaceChildren();
  $("senses").replaceChildren();
  if (found.error) {
    $("word-note").textContent = visible(found.error);
    return;
  }
  const shown = 100 * (found.explained[0] + found.explained[1]);
  $("word-note").textContent =
    `${found.points.length} in the sample, by the mix; two groups by 2-means, on the first two principal components ` +
    `(${shown.toFixed(0)}% of the variance)`;
  const range = (values) => [Math.min(...values), Math.max(...values) - Math.min(...values) || 1];
  const [left, width] = range(found.points.map((p) => p.x));
  const [low, height] = range(found.points.map((p) => p.y));
  for (const point of found.points) {
    const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    circle.setAttribute("cx", (600 * (point.x - left)) / width);
    circle.setAttribute("cy", 400 - (400 * (point.y - low)) / height);
    circle.setAttribute("r", 5);
    circle.setAttribute("class", `g${point.group}${String(point.row) === state.chosen ? " chosen" : ""}`);
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = visible(`${point.before} ${point.word} ${point.after}`);
    circle.append(title);
    circle.addEventListener("click", () => attempt(() => open(point.sentence)));
    $("map").append(circle);
  }
  for (const group of [0, 1]) {
    const members = found.points.filter((point) => point.group === group);
    if (!members.length) continue;
    const list = element("ol", {}, ...members.slice(0, 8).map((one) => element("li", {}, occurrence(one, ""))));
    $("senses").append(element("div", {}, element("h3", {}, `group ${group + 1}: ${members.length}`), list));
  }
}

let waiting = null;

function moved() {
  clearTimeout(waiting);
  waiting = setTimeout(() => attempt(() => neighbours(false)), 15);
}

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(() => find());
});
$("more").addEventListener("click", () => attempt(() => find(true)));
$("approx").addEventListener("change", () => attempt(() => neighbours(true)));
$("own").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const found = await ask("embed", {}, { method: "POST", body: $("text").value });
    $("where").textContent = "a sentence of your own";
    show(found, (i) => `${found.own}:${i}`, null);
  });
});

attempt(about);
