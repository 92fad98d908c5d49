// Maps of a word's occurrences: a small one of the mix and of each layer side by side, and one of them large.

import { $, ask, attempt, count, drawn, element, newest, visible, words } from "./page.js";

const WIDTH = 600, HEIGHT = 400;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// ``asked()``: {word, s, row}; ``chosen()`` and ``choose(name)``: which map is the large one; ``open(sentence, row)``.
export function wordMaps({ asked, chosen, choose, open }) {
  let [found, kept, whole] = [null, [], true];
  const off = new Set(); // groups that are left out

  const refresh = newest(async () => {
    const { word, s } = asked();
    const by = $("by").value;
    if (word === null) return;
    const layers = whole || found?.word !== word;
    whole = false;
    const answer = await ask("word", { word, s, by, layers: layers ? "1" : "0" }).catch((error) => ({ error: error.message }));
    if (asked().word !== word) return;
    $("word").hidden = false;
    $("h-word").replaceChildren("Occurrences of ", words(word));
    $("word-said").hidden = Boolean(answer.error);
    if (answer.error) {
      found = null;
      $("word-note").textContent = visible(answer.error);
      return;
    }
    if (layers) [found, kept] = [answer, []];
    else found.maps = [...answer.maps, ...found.maps.slice(1)];
    draw();
    document.body.dataset.mapped = s;
  });

  const all = () => [...found.maps, ...kept];
  const large = () => all().find((map) => map.name === chosen()) ?? all()[0];

  function draw() {
    const shown = found.points.length === found.found ? `all ${count(found.found)}` : `${count(found.points.length)} of ${count(found.found)}`;
    const drawnAt = found.points.length === found.found ? "" : ", drawn at random";
    $("word-note").textContent = `${shown} occurrences in ${count(found.of)} rows${drawnAt}, along two principal components. The number of ` +
      "clusters is the one of the best silhouette (cosine); one where a single cloud would do as well.";
    $("maps").replaceChildren(...all().map(small));
    const map = large();
    big(map);
    $("senses").replaceChildren(...map.groups.map((name, group) => sense(map, group, name)));
    filter();
    $("keep").hidden = found.maps.length === 1;
  }

  function small(map) {
    const at = places(map, 120, 80);
    const groups = map.groups.map((_, group) => {
      const d = at.filter((_, i) => map.group[i] === group).map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");
      return drawn("path", { d, class: `p${group}` });
    });
    const says = element("span", {}, element("b", {}, words(map.name)), element("br"), separation(map));
    const pressed = String(map === large());
    const button = element("button", { type: "button", ariaPressed: pressed }, drawn("svg", { viewBox: "-6 -6 132 92", "aria-hidden": "true" }, ...groups), says);
    button.addEventListener("click", () => {
      choose(map.name);
      draw();
      [...$("maps").children].find((other) => other.ariaPressed === "true")?.focus();
    });
    return button;
  }

  const separation = (map) =>
    (map.clusters === 1 ? "one cluster" : `${map.clusters} clusters, silhouette ${map.silhouette.toFixed(2)}`) +
    (map.of_labels === null ? "" : `; of ${visible($("by").value)} ${map.of_labels.toFixed(2)}`);

  function sense(map, group, name) {
    const members = found.points.filter((_, i) => map.group[i] === group);
    const sign = drawn("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, drawn("circle", { cx: 8, cy: 8, r: 5, class: `g${group}` }));
    const list = element("ol", {}, ...members.slice(0, 5).map((point) => element("li", {}, occurrence(point, "", open))));
    const button = element("button", { type: "button", ariaPressed: "true" }, sign, words(name), `: ${count(members.length)}`);
    button.addEventListener("click", () => {
      off.has(name) ? off.delete(name) : off.add(name);
      filter();
    });
    return element("div", {}, element("h3", {}, button), list);
  }

  // A group whose button is not pressed is left out of the large map, and of what is saved.
  function filter() {
    const map = large();
    [...$("map").children].forEach((circle, i) => circle.classList.toggle("off", off.has(map.groups[map.group[i]])));
    [...$("senses").children].forEach((box, group) => (box.querySelector("button").ariaPressed = String(!off.has(map.groups[group]))));
  }

  function save(kind) {
    const map = large();
    const rows = found.points.map((point, i) => ({ ...point, x: map.x[i], y: map.y[i], group: map.groups[map.group[i]] })).filter((row) => !off.has(row.group));
    const names = ["row", "sentence", "group", "x", "y", "before", "word", "after"];
    const plain = (value) => String(value).replace(/[\t\r\n]/g, " ");
    const text = kind === "json" ? JSON.stringify(rows) : [names, ...rows.map((row) => names.map((name) => plain(row[name])))].map((line) => line.join("\t")).join("\n");
    const address = URL.createObjectURL(new Blob([text + "\n"], { type: "text/plain" }));
    element("a", { href: address, download: `occurrences.${kind}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  // Points of which one is in the order of the Tab key, the chosen word's if it is there; arrow keys go on from it.
  function big(map) {
    const { points } = found;
    const at = places(map, WIDTH, HEIGHT);
    const mine = Math.max(0, points.findIndex((point) => String(point.row) === asked().row));
    const explained = 100 * (map.explained[0] + map.explained[1]);
    $("map-note").textContent = `${map.name}: ${separation(map)}; ${explained.toFixed(0)}% of the variance is in this plane.`;
    const circles = points.map((point, i) => {
      const own = String(point.row) === asked().row;
      const text = visible(`${point.before} ${point.word} ${point.after}`);
      return drawn("circle", {
        cx: at[i][0].toFixed(1), cy: at[i][1].toFixed(1), r: points.length > 300 ? 4 : 6, class: `g${map.group[i]}${own ? " chosen" : ""}`,
        tabindex: i === mine ? 0 : -1, role: "option", "aria-selected": String(own),
        "aria-label": `${text}, ${visible(map.groups[map.group[i]])}${own ? ", chosen" : ""}`,
      });
    });
    const indexOf = (event) => circles.indexOf(event.target);
    const tell = (event) => {
      const point = points[indexOf(event)];
      if (point) $("map-said").replaceChildren(words(point.before), " ", element("b", {}, words(point.word)), " ", words(point.after));
    };
    const enter = (i) => points[i] && attempt(() => open(points[i].sentence, points[i].row));
    const stand = (from, to) => {
      circles[from].setAttribute("tabindex", -1);
      circles[to].setAttribute("tabindex", 0);
      circles[to].focus();
      tell({ target: circles[to] });
    };
    Object.assign($("map"), {
      onclick: (event) => enter(indexOf(event)),
      onpointerover: tell,
      onkeydown: (event) => {
        const here = indexOf(event);
        if (here < 0) return;
        if (event.key === "Enter" || event.key === " ") enter(here);
        else if (event.key === "Home") stand(here, 0);
        else if (event.key === "End") stand(here, circles.length - 1);
        else if (event.key in ARROWS) stand(here, towards(at, here, ARROWS[event.key], (i) => !circles[i].classList.contains("off")));
        else return;
        event.preventDefault();
      },
    });
    const focused = [...$("map").children].indexOf(document.activeElement);
    $("map").replaceChildren(...circles);
    if (focused >= 0) stand(mine, Math.min(focused, circles.length - 1));
  }

  for (const kind of ["tsv", "json"]) $(`save-${kind}`).addEventListener("click", () => save(kind));
  $("keep").addEventListener("click", () => {
    const name = `s ${asked().shares}`;
    if (!all().some((map) => map.name === name)) kept = [...kept, { ...found.maps[0], name }];
    draw();
  });

  return {
    refresh,
    anew() {
      whole = true;
      return refresh();
    },
    redraw: () => found && draw(),
    clear() {
      found = null;
      $("word").hidden = true;
    },
  };
}

// A map's points in a box of that size, from its top left.
function places(map, width, height) {
  const range = (values) => {
    const low = values.reduce((a, b) => Math.min(a, b));
    return [low, values.reduce((a, b) => Math.max(a, b)) - low || 1];
  };
  const [[left, across], [low, up]] = [range(map.x), range(map.y)];
  return map.x.map((x, i) => [(width * (x - left)) / across, height - (height * (map.y[i] - low)) / up]);
}

// The nearest point in a direction, what lies aside of it counting twice; the same point if none lies there.
function towards(at, from, [dx, dy], shown) {
  let [best, least] = [from, Infinity];
  at.forEach(([x, y], i) => {
    const along = (x - at[from][0]) * dx + (y - at[from][1]) * dy;
    const aside = Math.abs((x - at[from][0]) * dy + (y - at[from][1]) * dx);
    if (shown(i) && along > 0 && along + 2 * aside < least) [best, least] = [i, along + 2 * aside];
  });
  return best;
}

// A token among its neighbours, as a button that opens its sentence.
export function occurrence(one, label, open) {
  const button = element("button", { type: "button" });
  if (label) button.append(element("small", {}, label), " ");
  button.append(words(one.before), " ", element("b", {}, words(one.word)), " ", words(one.after));
  button.addEventListener("click", () => attempt(() => open(one.sentence, one.row)));
  return button;
}
