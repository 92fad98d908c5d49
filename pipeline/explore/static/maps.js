// Maps of a word's occurrences: a small one of the mix and of each layer side by side, one of them large, and another beside it.

import { NO_MIX, shares } from "./mixer.js";
import { $, ask, attempt, colour, count, decimal, drawn, element, newest, numbers, roving, visible, words } from "./page.js";
import { plane, positions } from "./plane.js";
import { save } from "./save.js";

// ``asked()``: {word, s, gamma, row, none: whether s is 0 throughout}; ``about()``: what the page's head says of the store;
// ``open(sentence, row)``; ``changed()`` when what stands in the address does: the large map, the groups, the map beside it,
// the mixes that were kept; ``regroup()`` when all is to be drawn by other groups; ``take(s)`` moves the sliders.
export function wordMaps({ asked, about, open, changed, regroup, take }) {
  let [data, layersWanted, drawnWord] = [null, true, null];
  let [largeName, besideName, kept] = ["", "", []]; // kept: the s of each mix
  const [off, selected] = [new Set(), new Set()]; // groups that are left out, points that are selected
  const hooks = {
    open: (i) => attempt(() => open(data.points[i].sentence, data.points[i].row)), selected, changed: mark,
    label: (i) => data.labels?.[i] ?? "", looked: (view) => [main, other].forEach((one) => one.look(view)),
  };
  const [main, other] = [plane("map", hooks), plane("map2", hooks)];
  $("planes").append(main.figure, other.figure);
  for (const box of [$("maps"), $("senses"), ...document.querySelectorAll(".plane .tools")]) roving(box);

  const refresh = newest(async () => {
    const { word, s, none } = asked();
    if (word === null) return;
    if (none) {
      data = null;
      [$("word").hidden, $("word-said").hidden, $("word-note").textContent] = [false, true, NO_MIX];
      return;
    }
    const layers = layersWanted || data?.word !== word;
    layersWanted = false;
    const by = $("by").value;
    const mapsOf = (weights, layers) => ask("word", { word, s: weights.join(","), by, layers: layers ? "1" : "0" });
    const answer = await mapsOf(s, layers).catch((error) => ({ error: error.message }));
    const others = [];
    for (const one of layers && !answer.error ? kept : []) others.push({ ...(await mapsOf(one, false)).maps[0], name: keptName(one) });
    if (asked().word !== word) return;
    $("word").hidden = false;
    $("h-word").replaceChildren("Occurrences of ", words(word));
    $("word-said").hidden = Boolean(answer.error);
    if (answer.error) {
      data = null;
      $("word-note").textContent = visible(answer.error);
      return;
    }
    if (drawnWord !== word) {
      selected.clear();
      $("suggested").textContent = "";
    }
    drawnWord = word;
    if (layers) data = { ...answer, points: data?.word === word ? data.points : answer.points, kept: others }; // the view stays
    else [data.maps[0]] = answer.maps;
    Object.assign(data, { s, by });
    draw();
    document.body.dataset.mapped = s.join(",");
  });

  const all = () => [...data.maps, ...data.kept];
  const large = () => all().find((map) => map.name === largeName) ?? all()[0];
  const beside = () => all().find((map) => map.name === besideName) ?? null;

  function draw() {
    const shown = data.points.length === data.found ? `all ${count(data.found)}` : `${count(data.points.length)} of ${count(data.found)}`;
    const drawnAt = data.points.length === data.found ? "" : ", drawn at random";
    const n = data.labels?.filter((label) => label !== null).length;
    $("word-note").textContent = `${shown} occurrences in ${count(data.of)} rows${drawnAt}. ` + (data.by
      ? `Scores are those of ${visible(data.by)}, over ${count(n)} labelled occurrences: 1-NN is the share of them whose nearest other one has the same label, silhouette is by cosine distance.`
      : "The number of clusters is the one with the best silhouette (cosine distance), or one where a single cloud fits as well.");
    [$("suggest").hidden, $("suggested").hidden] = [!data.by || about().kind !== "states", !data.by];
    $("maps").replaceChildren(...all().map(small));
    const map = large();
    $("senses").replaceChildren(...map.groups.map((name, group) => sense(map, group, name)));
    $("beside").replaceChildren(element("option", { value: "" }, "nothing"), ...all().map(({ name }) => element("option", { value: name }, visible(name))));
    $("beside").value = beside()?.name ?? "";
    $("keep").hidden = about().kind !== "states";
    $("keep").textContent = data.kept.includes(map) ? "drop this map" : "keep this mix’s map";
    drawLarge();
  }

  function drawLarge() {
    const [map, second] = [large(), beside()];
    const groups = { names: map.groups, group: map.group, colour: (group) => colourOf(map, group) };
    main.draw(data.points, map, groups, asked().row, told(map));
    other.figure.hidden = !second;
    $("word-said").classList.toggle("two", Boolean(second));
    if (second) other.draw(data.points, second, groups, asked().row, told(second) + (data.by ? "" : ` In the colours of ${visible(map.name)}.`));
    mark();
  }

  const colourOf = (map, group) => (group === map.unlabelled ? "cnone" : group === map.others ? "cothers" : colour(group));

  function told(map) {
    const says = `${visible(map.name)}: ${scores(map).join(", ")}`;
    if (!map.explained) return `${says}.`;
    return `${says}; ${decimal(100 * (map.explained[0] + map.explained[1]), 0)}% of the variance is in this plane.`;
  }

  // What is said of how a map's groups lie apart: of clusters, or of labels, where the highest of all maps is marked.
  function scores(map) {
    if (!map.explained) return ["one point: all are the same vector"];
    if (!data.by) return [map.silhouette === null ? "one cluster" : `${map.groups.length} clusters, silhouette ${decimal(map.silhouette, 3)}`];
    if (map.accuracy === null) return ["fewer than two labels"];
    const highest = (score) => (all().every((other) => (other[score] ?? -2) <= map[score]) ? " (highest)" : "");
    return [`1-NN ${decimal(map.accuracy, 3)}${highest("accuracy")}`, `silhouette ${decimal(map.silhouette, 3)}${highest("silhouette")}`];
  }

  function small(map) {
    const at = positions(map, 120, 80);
    const groups = map.groups.map((_, group) => {
      const d = at.filter((_, i) => map.group[i] === group).map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");
      return drawn("path", { d, class: colourOf(map, group) });
    });
    const says = element("span", {}, element("b", {}, words(map.name)), ...scores(map).flatMap((one) => [element("br"), one]));
    const pressed = String(map === large());
    const button = element("button", { type: "button", ariaPressed: pressed }, drawn("svg", { viewBox: "-6 -6 132 92", "aria-hidden": "true" }, ...groups), says);
    button.addEventListener("click", () => {
      largeName = map.name;
      changed();
      draw();
      [...$("maps").children].find((one) => one.ariaPressed === "true")?.focus();
    });
    return button;
  }

  function sense(map, group, name) {
    const label = (i) => (group === map.others ? data.labels[i] : null);
    const members = data.points.flatMap((point, i) => (map.group[i] === group ? [{ ...point, label: label(i) }] : []));
    const dot = drawn("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, drawn("circle", { cx: 8, cy: 8, r: 5, class: colourOf(map, group) }));
    const list = element("ol", {}, ...members.slice(0, map.groups.length > 4 ? 3 : 5).map((point) => element("li", {}, occurrence(point, "", open))));
    const button = element("button", { type: "button", ariaPressed: "true" }, dot, element("span", {}, words(name), `: ${count(members.length)}`));
    button.addEventListener("click", () => {
      off.has(name) ? off.delete(name) : off.add(name);
      mark();
    });
    return element("div", {}, element("h3", {}, button), list);
  }

  // A group whose button is not pressed is left out of the large maps, and of what is saved.
  function mark() {
    const map = large();
    const isShown = (i) => !off.has(map.groups[map.group[i]]);
    for (const one of [main, other]) one.mark(isShown);
    [...$("senses").children].forEach((box, group) => (box.querySelector("button").ariaPressed = String(!off.has(map.groups[group]))));
    const rows = saved();
    $("selected").textContent = selected.size ? `${count(rows.length)} of ${count(data.points.length)} points selected` : `${count(rows.length)} points`;
    $("unselect").hidden = !selected.size;
  }

  // The points that are selected, or all, but for groups that are left out.
  function saved() {
    const map = large();
    const row = (point, i) => ({ ...point, x: map.x[i], y: map.y[i], label: data.labels?.[i] ?? "", group: map.groups[map.group[i]] });
    return data.points.map(row).filter((one, i) => !off.has(one.group) && (!selected.size || selected.has(i)));
  }

  for (const kind of ["tsv", "json", "py"]) {
    $(`save-${kind}`).addEventListener("click", () => {
      const map = large();
      save(kind, saved(), { about: about(), s: map.s, gamma: map === data.maps[0] ? asked().gamma : 1 });
    });
  }
  $("keep").addEventListener("click", () => {
    const map = large();
    if (data.kept.includes(map)) {
      kept = kept.filter((s) => keptName(s) !== map.name);
      data.kept = data.kept.filter((one) => one !== map);
      [largeName, besideName] = ["", besideName === map.name ? "" : besideName];
    } else if (!all().some(({ name }) => name === keptName(data.s))) {
      kept = [...kept, data.s];
      data.kept = [...data.kept, { ...data.maps[0], name: keptName(data.s) }];
    }
    changed();
    draw();
  });
  $("unselect").addEventListener("click", () => {
    selected.clear();
    mark();
  });
  for (const id of ["beside", "by"]) {
    $(id).addEventListener("change", () => {
      besideName = $("beside").value;
      changed();
      if (id === "by") {
        $("suggested").textContent = "";
        regroup();
      } else if (data) draw();
    });
  }
  $("suggest").addEventListener("click", () => attempt(async () => {
    const { word, by } = data;
    $("suggested").textContent = "trying mixes …";
    const found = await ask("suggest", { word, by }).catch((error) => ({ said: error.message }));
    if (word !== asked().word || by !== $("by").value) return;
    const caution = found.s ? " The scores at the maps are of the same occurrences that s was chosen on." : "";
    $("suggested").textContent = visible(found.said) + caution;
    if (found.s) take(found.s);
  }));

  function anew() {
    layersWanted = true;
    return refresh();
  }

  return {
    refresh,
    anew,
    clear() {
      data = null;
      $("word").hidden = true;
    },
    address: () => ({
      layer: largeName, by: $("by").value, beside: besideName, kept: kept.map((s) => s.join(",")).join(";"),
    }),
    // As an address says; returns what draws it, once the word is chosen.
    restore(parameters) {
      const text = (name) => parameters.get(name) ?? "";
      const before = [$("by").value, String(kept)];
      [largeName, besideName] = [text("layer"), text("beside")];
      kept = text("kept").split(";").map(numbers).filter((s) => s.length === about().layers.length);
      $("by").value = about().fields.includes(text("by")) ? text("by") : "";
      const same = String([$("by").value, String(kept)]) === String(before);
      return () => (same ? data && draw() : regroup());
    },
  };
}

const keptName = (s) => `s ${shares(s).map((one) => one.toFixed(2)).join(" ")}`;

// A token among its neighbours, as a button that opens its sentence.
export function occurrence(one, label, open) {
  const button = element("button", { type: "button" });
  if (label) button.append(element("small", {}, label), " ");
  button.append(words(one.before), " ", element("b", {}, words(one.word)), " ", words(one.after));
  if (one.label) button.append(" · ", element("i", {}, words(one.label)));
  button.addEventListener("click", () => attempt(() => open(one.sentence, one.row)));
  return button;
}
