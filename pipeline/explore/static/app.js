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
      ? found.reading ? "the sample is being read …" : "neighbours can't be shown"
      : found.sample === found.rows
        ? "neighbours are exact over all rows"
        : `neighbours are exact over a sample of ${number(found.sample)} of ${number(found.rows)} rows, evenly spaced blocks`;
  $("about").replaceChildren(
    `${number(found.tokens)} tokens in ${number(found.sentences)} sentences, model `, words(found.model), `; ${sample}.`,
    ...(found.problem ? [" ", words(found.problem)] : []),
  );
  $("approx-box").hidden = found.index === null;
  if (!state.s.length) {
    sliders(found);
    $("by").append(...found.fields.map((name) => element("option", { value: name }, visible(name))));
    $("by-box").hidden = !found.fields.length;
    $("by").addEventListener("change", () => attempt(occurrences));
  }
  if (found.reading) setTimeout(() => attempt(about), 700);
  else document.body.dataset.sample = "ready";
}

function sliders(found) {
  state.s = found.layers.map(() => 1);
  if (found.kind !== "states") return;
  const add = (label, kind, most, change) => {
    const input = element("input", { type: "range", className: kind, min: 0, max: most, step: 0.01, value: 1, ariaLabel: label });
    const set = () => {
      change(Number(input.value));
      shares();
    };
    input.addEventListener("input", () => {
      set();
      moved();
    });
    $("sliders").append(element("label", {}, label, input, element("output", {}, "1.00")));
    return () => {
      input.value = 1;
      set();
    };
  };
  const back = found.layers.map((name, k) => add(`s of ${name}`, `a${k % 5}`, 1, (value) => (state.s[k] = value)));
  back.push(add("γ", "plain", 4, (value) => (state.gamma = value)));
  $("even").addEventListener("click", () => {
    back.forEach((one) => one());
    moved();
  });
  $("shares").append(...found.layers.map((_, k) => element("i", { className: `k${k % 5}` })));
  shares();
}

// What the sliders come to: s is 1 together.
function shares() {
  const total = state.s.reduce((sum, one) => sum + one, 0) || 1;
  const shown = [...state.s.map((one) => one / total), state.gamma];
  document.querySelectorAll("#sliders output").forEach((output, k) => (output.textContent = shown[k].toFixed(2)));
  [...$("shares").children].forEach((part, k) => (part.style.width = `${100 * shown[k]}%`));
}

async function find(more = false) {
  state.offset = more ? state.offset + 30 : 0;
  state.asked = more ? state.asked : $("q").value;
  const { asked, offset } = state;
  const found = await ask("search", { q: asked, offset });
  if (asked !== state.asked || offset !== state.offset) return []; // something newer was asked for meanwhile
  const items = found.hits.map((hit) => {
    const text = element("span", {}, element("small", {}, "#", String(hit.number), " "), words(hit.tokens.join(" ")));
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

// A sentence of the store; ``row`` of it is chosen, as if clicked.
async function open(number, row = null) {
  const found = await ask("sentence", { number });
  $("where").replaceChildren(`#${found.number}, `, words(found.id), ", from ", words(found.source.split("/").pop()), ` (${found.position})`);
  for (const [name, value] of Object.entries(found.fields)) $("where").append("; ", words(name), ": ", words(value));
  $("where").title = visible(found.source);
  show(found, (i) => String(found.first_row + i), row === null ? null : row - found.first_row);
}

function show(found, key, place) {
  const most = Math.max(1e-9, ...found.norms.flat());
  const buttons = found.tokens.map((text, i) => {
    const button = element("button", { type: "button", ariaPressed: "false" }, words(text), bars(found.norms[i] ?? [], most));
    button.addEventListener("click", () => {
      buttons.forEach((other) => (other.ariaPressed = String(other === button)));
      state.chosen = key(i);
      state.word = text;
      $("hint").hidden = true;
      attempt(() => neighbours(true));
    });
    return button;
  });
  $("tokens").replaceChildren(...buttons);
  const names = state.about.layers.flatMap((name, k) => [" ", element("span", { className: "key" }, element("i", { className: `k${k % 5}` }), words(name))]);
  $("legend").replaceChildren("norm of each word in", ...names);
  $("legend").hidden = !found.norms.length;
  $("hint").hidden = state.chosen !== null;
  $("code").textContent = visible2(found.code);
  $("code-box").hidden = false;
  $("sentence").scrollIntoView({ block: "nearest" });
  if (place !== null && buttons[place]) {
    buttons[place].focus();
    buttons[place].click();
  }
}

// Line ends of code stay.
const visible2 = (text) => text.split("\n").map(visible).join("\n");

// The norm of a word in each layer, as bars beneath it.
function bars(norms, most) {
  const group = element("span", { className: "bars", title: norms.map((norm, k) => `${state.about.layers[k]}: ${norm}`).join("\n") });
  norms.forEach((norm, k) => {
    const bar = element("i", { className: `k${k % 5}` });
    bar.style.height = `${(100 * norm) / most}%`;
    group.append(bar);
  });
  return group;
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
  const box = (id, className, name, list) => {
    const items = list.map((one) => element("li", {}, occurrence(one, one.cosine.toFixed(3))));
    return element("div", { id, className }, element("h3", {}, words(name)), element("ol", {}, ...items));
  };
  if (layers) $("lists").replaceChildren(...found.layers.map((one, k) => box(`layer${k}`, `t${k % 5}`, one.name, one.found)));
  $("mix")?.remove();
  if (found.mix) {
    $("lists").prepend(box("mix", "", "the mix", found.mix));
    $("norm").textContent = `norm of the chosen word’s mix: ${(state.gamma * found.norm).toFixed(3)}`;
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
  const button = element("button", { type: "button" });
  if (label) button.append(element("small", {}, label), " ");
  button.append(words(one.before), " ", element("b", {}, words(one.word)), " ", words(one.after));
  button.addEventListener("click", () => attempt(() => open(one.sentence, one.row)));
  return button;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

async function occurrences() {
  const field = $("by").value;
  const found = await ask("word", { word: state.word, s: state.s.join(","), field }).catch((error) => ({ error: error.message }));
  $("word").hidden = false;
  $("h-word").replaceChildren("Occurrences of ", words(state.word));
  $("map").replaceChildren();
  $("senses").replaceChildren();
  $("map-said").replaceChildren();
  $("map-box").hidden = Boolean(found.error);
  if (found.error) {
    $("word-note").textContent = visible(found.error);
    return;
  }
  const explained = 100 * (found.explained[0] + found.explained[1]);
  $("word-note").textContent =
    `${found.points.length} in the sample, by the mix; groups by ${field ? `the field ${visible(field)}` : "2-means"}, on the first two principal components ` +
    `(${explained.toFixed(0)}% of the variance)`;
  wordMap(found.points, found.groups);
  for (const [group, name] of found.groups.entries()) {
    const members = found.points.filter((point) => point.group === group);
    if (!members.length) continue;
    const sign = drawn("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, drawn("circle", { cx: 8, cy: 8, r: 5, class: `g${group}` }));
    const list = element("ol", {}, ...members.slice(0, 6).map((one) => element("li", {}, occurrence(one, ""))));
    $("senses").append(element("div", {}, element("h3", {}, sign, words(name), `: ${members.length}`), list));
  }
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// A word's occurrences as points. One of them is in the order of the Tab key, the chosen word's if it is there; arrow keys go on from it.
function wordMap(points, groups) {
  const range = (values) => [Math.min(...values), Math.max(...values) - Math.min(...values) || 1];
  const [left, width] = range(points.map((p) => p.x));
  const [low, height] = range(points.map((p) => p.y));
  const at = points.map((p) => [(600 * (p.x - left)) / width, 400 - (400 * (p.y - low)) / height]);
  const circles = points.map((point, i) => {
    const chosen = String(point.row) === state.chosen;
    const text = visible(`${point.before} ${point.word} ${point.after}`);
    const circle = drawn("circle", {
      cx: at[i][0].toFixed(1), cy: at[i][1].toFixed(1), r: 6, class: `g${point.group}${chosen ? " chosen" : ""}`, tabindex: -1,
      role: "option", "aria-selected": String(chosen), "aria-label": `${text}, ${visible(groups[point.group])}${chosen ? ", chosen" : ""}`,
    });
    const tell = () => $("map-said").replaceChildren(words(point.before), " ", element("b", {}, words(point.word)), " ", words(point.after));
    circle.addEventListener("click", () => attempt(() => open(point.sentence, point.row)));
    circle.addEventListener("pointerenter", () => {
      circle.classList.add("here");
      tell();
    });
    circle.addEventListener("pointerleave", () => circle.classList.remove("here"));
    circle.addEventListener("focus", tell);
    return circle;
  });
  let here = Math.max(0, points.findIndex((point) => String(point.row) === state.chosen));
  const stand = (place) => {
    circles[here].setAttribute("tabindex", -1);
    here = place;
    circles[here].setAttribute("tabindex", 0);
  };
  stand(here);
  $("map").onkeydown = (event) => {
    if (event.key === "Enter" || event.key === " ") attempt(() => open(points[here].sentence, points[here].row));
    else if (event.key === "Home") stand(0);
    else if (event.key === "End") stand(circles.length - 1);
    else if (event.key in ARROWS) stand(towards(at, here, ARROWS[event.key]));
    else return;
    event.preventDefault();
    if (event.key !== "Enter" && event.key !== " ") circles[here].focus();
  };
  $("map").replaceChildren(...circles);
}

// The nearest point in a direction, what lies aside of it counting twice; the same point if none lies there.
function towards(at, from, [dx, dy]) {
  let [best, least] = [from, Infinity];
  at.forEach(([x, y], i) => {
    const along = (x - at[from][0]) * dx + (y - at[from][1]) * dy;
    const aside = Math.abs((x - at[from][0]) * dy + (y - at[from][1]) * dx);
    if (along > 0 && along + 2 * aside < least) [best, least] = [i, along + 2 * aside];
  });
  return best;
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
    const found = await ask("embed", {}, { method: "POST", body: $("text").value });
    $("where").textContent = "A sentence of your own: choose one of its words.";
    $("where").title = "";
    show(found, (i) => `${found.own}:${i}`, null);
    $("tokens").firstElementChild.focus();
  }).finally(done);
});

// The page begins with the store's first sentences.
attempt(async () => {
  await about();
  const [first] = await find();
  if (!first) $("where").textContent = "There is no sentence.";
  else if (!$("tokens").children.length) await open(first.number);
});
