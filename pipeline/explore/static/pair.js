// Two sentences, token by token: a heatmap of cosines by the mix and by each layer, one of them as a table.

import { $, ask, attempt, decimal, element, newest, roving, visible, words } from "./page.js";
import { hitItems } from "./find.js";
import { NO_MIX } from "./mixer.js";

const MOST_HITS = 5, CELL = 6; // pixels of a token in a small heatmap

// ``asked()``: {sentence: a number or an own sentence's key, s, none: whether s is 0 throughout}; ``changed()`` when another second sentence is chosen.
export function pairMaps({ asked, changed }) {
  let [second, data, chosen] = [null, null, ""];

  const refresh = newest(async () => {
    const { sentence, s, none } = asked();
    if (second === null || sentence === null) return;
    const wanted = second;
    const answer = await ask("pair", { first: sentence, second: wanted, ...(none ? {} : { s }) });
    if (asked().sentence !== sentence || second !== wanted) return;
    data = { ...answer, first: String(sentence).startsWith("own") ? "your sentence" : `#${sentence}`, second: `#${wanted}` };
    $("pair-none").textContent = none ? NO_MIX : "";
    draw();
    document.body.dataset.paired = `${sentence},${wanted},${s}`;
  });

  for (const id of ["heats", "pair-hits"]) roving($(id));

  const large = () => data.maps.find((map) => map.name === chosen) ?? data.maps[0];

  function draw() {
    $("pair-said").hidden = false;
    $("heats").replaceChildren(...data.maps.map(small));
    $("heat").replaceChildren(...table(large()));
  }

  function small(map) {
    const [rows, columns] = data.tokens.map((tokens) => tokens.length);
    const canvas = element("canvas", { width: columns * CELL, height: rows * CELL });
    canvas.ariaHidden = "true";
    const style = getComputedStyle(document.documentElement);
    const pen = canvas.getContext("2d");
    map.cosines.forEach((line, i) => line.forEach((value, j) => {
      pen.globalAlpha = Math.abs(value);
      pen.fillStyle = style.getPropertyValue(value < 0 ? "--s1" : "--s0");
      pen.fillRect(j * CELL, i * CELL, CELL, CELL);
    }));
    const says = element("span", {}, element("b", {}, words(map.name)));
    const best = highest(map, data.tokens);
    if (best) says.append(element("br"), `highest ${decimal(best[0])}: `, words(data.tokens[0][best[1]]), " – ", words(data.tokens[1][best[2]]));
    const button = element("button", { type: "button", ariaPressed: String(map === large()) }, canvas, says);
    button.addEventListener("click", () => {
      chosen = map.name;
      draw();
      [...$("heats").children].find((one) => one.ariaPressed === "true")?.focus();
    });
    return button;
  }

  // Rows are the words of the first sentence, columns those of the second.
  function table(map) {
    const cut = (which) => (data.tokens[which].length < data.of[which] ? `, the first ${data.tokens[which].length} of ${data.of[which]} words` : "");
    $("pair-note").textContent = `Cosines by ${visible(map.name)}: rows are the words of ${data.first}${cut(0)}, ` +
      `columns those of ${data.second}${cut(1)}. A frame marks each row’s highest.`;
    const head = element("tr", {}, element("td"), ...data.tokens[1].map((token) => element("th", { scope: "col" }, element("span", {}, words(token)))));
    const body = map.cosines.map((line, i) => {
      const best = line.indexOf(Math.max(...line));
      const cells = line.map((value, j) => {
        const cell = element("td", { className: j === best ? "best" : "" }, decimal(value));
        cell.style.backgroundColor = `color-mix(in srgb, var(${value < 0 ? "--s1" : "--s0"}) ${Math.round(50 * Math.abs(value))}%, var(--paper))`;
        return cell;
      });
      return element("tr", {}, element("th", { scope: "row" }, words(data.tokens[0][i])), ...cells);
    });
    return [element("thead", {}, head), element("tbody", {}, ...body)];
  }

  function choose(number) {
    second = number;
    $("pair-hits").replaceChildren();
    changed();
    return refresh();
  }

  $("pair-find").addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = $("pair-q").value;
    attempt(async () => {
      const hits = (await ask("search", { q: wanted })).hits.slice(0, MOST_HITS);
      if (hits.length === 1) return choose(hits[0].number);
      $("pair-hits").replaceChildren(...hitItems(hits, wanted, choose));
      if (hits.length) $("pair-hits").querySelector("button").focus();
      else $("pair-hits").append(element("li", {}, "no sentence has that"));
    });
  });

  return {
    refresh,
    second: () => second,
    choose(number) {
      $("pair").hidden = false;
      $("pair").scrollIntoView({ block: "nearest" });
      return choose(number);
    },
    restore(number) {
      if (number !== second) {
        [second, data] = [number, null];
        $("pair-said").hidden = true;
      }
      return refresh();
    },
  };
}

// The pair of words with the highest cosine: [cosine, row, column]; punctuation is no word.
function highest(map, tokens) {
  const [rows, columns] = tokens.map((side) => side.map((token) => /[\p{L}\p{N}]/u.test(token)));
  const pairs = map.cosines.flatMap((line, i) => line.map((value, j) => [value, i, j])).filter(([, i, j]) => rows[i] && columns[j]);
  return pairs.reduce((best, one) => (best && best[0] >= one[0] ? best : one), null);
}
