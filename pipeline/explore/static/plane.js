// One large map of points: walked by arrow keys, zoomed, dragged, selected by a lasso or from the keyboard.

import { drawn, element, visible, words } from "./page.js";

const WIDTH = 600, HEIGHT = 400, EDGE = 16, MOST = 60;
const MOVED = 4, FINGER = 22; // pixels: from which a press is a drag; half of a finger
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ZOOMS = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, "0": 0 };

// ``id`` of the drawing; ``open(i)`` a point, ``selected`` a set of points that all planes share, ``changed()`` it; ``looked(view)``
// when it is zoomed or moved, so that another plane can take the same view; ``label(i)`` is what a point is labelled, if it is.
export function plane(id, { open, selected, changed, looked, label }) {
  const note = element("p", { className: "note", id: `${id}-note` });
  const said = element("p", { className: "said", id: `${id}-said` });
  const svg = drawn("svg", { id, viewBox: `${-EDGE} ${-EDGE} ${WIDTH + 2 * EDGE} ${HEIGHT + 2 * EDGE}`, role: "listbox", "aria-multiselectable": true,
    "aria-labelledby": `h-word ${id}-note`, "aria-describedby": "map-keys" });
  const button = (text, label, work) => {
    const made = element("button", { type: "button", ariaLabel: label, title: label }, text);
    made.addEventListener("click", work);
    return made;
  };
  const lasso = button("lasso", "lasso: drag around points to select them", () => hold(lasso.ariaPressed !== "true"));
  const tools = element("p", { className: "tools", role: "group", ariaLabel: "view" }, lasso, button("+", "zoom in", () => zoom(1.5)),
    button("−", "zoom out", () => zoom(1 / 1.5)), button("all", "the whole map", () => zoom(0)));
  const figure = element("div", { className: "plane" }, tools, svg, note, said);

  let [points, at, circles, shown] = [[], [], [], () => true];
  let view = { k: 1, x: 0, y: 0 }; // a point is drawn at k · at + (x, y)

  const seen = ([x, y]) => [view.k * x + view.x, view.k * y + view.y];
  const all = () => circles.map((_, i) => i).filter(shown);
  const inView = (i) => seen(at[i]).every((value, axis) => value >= -EDGE && value <= [WIDTH, HEIGHT][axis] + EDGE);

  function hold(on) {
    lasso.ariaPressed = String(on);
    svg.classList.toggle("held", on || view.k > 1);
  }

  function look(next, shared = true) {
    const k = Math.min(MOST, Math.max(1, next.k));
    const within = (value, size) => Math.min(0, Math.max(size * (1 - k), value));
    view = { k, x: within(next.x, WIDTH), y: within(next.y, HEIGHT) };
    circles.forEach((circle, i) => {
      const [x, y] = seen(at[i]);
      circle.setAttribute("cx", x.toFixed(1));
      circle.setAttribute("cy", y.toFixed(1));
    });
    svg.dataset.zoom = k.toFixed(2);
    hold(lasso.ariaPressed === "true");
    if (shared) looked(view);
  }

  // ``factor`` 0 shows the whole map.
  function zoom(factor, [x, y] = [WIDTH / 2, HEIGHT / 2]) {
    const k = factor ? Math.min(MOST, Math.max(1, view.k * factor)) : 1;
    look({ k, x: x - ((x - view.x) * k) / view.k, y: y - ((y - view.y) * k) / view.k });
  }

  function tell(i) {
    const point = points[i];
    if (!point) return;
    said.replaceChildren(words(point.before), " ", element("b", {}, words(point.word)), " ", words(point.after));
    if (label(i)) said.append(" · ", element("i", {}, words(label(i))));
  }

  // One point is in the order of the Tab key; a point out of view is brought into its middle.
  function stand(from, to) {
    circles[from]?.setAttribute("tabindex", -1);
    circles[to].setAttribute("tabindex", 0);
    if (!inView(to)) look({ k: view.k, x: WIDTH / 2 - view.k * at[to][0], y: HEIGHT / 2 - view.k * at[to][1] });
    circles[to].focus({ preventScroll: view.k > 1 });
    tell(to);
  }

  function select(chosen, more) {
    if (!more) selected.clear();
    chosen.forEach((i) => selected.add(i));
    changed();
  }

  function walk(event, here) {
    const to = event.key in ARROWS ? towards(at, here, ARROWS[event.key], shown) : all().at(event.key === "Home" ? 0 : -1);
    if (event.shiftKey) select([here, to], true);
    stand(here, to);
  }

  svg.addEventListener("keydown", (event) => {
    const here = circles.indexOf(event.target);
    const command = event.ctrlKey || event.metaKey;
    if (here < 0 || event.altKey) return;
    if (event.key.toLowerCase() === "a" && command) select(all().filter(inView));
    else if (command) return;
    else if (event.key === "Enter") open(here);
    else if (event.key === "Escape") select([]);
    else if (event.key === " ") {
      selected.has(here) ? selected.delete(here) : selected.add(here);
      changed();
    } else if (event.key in ARROWS || event.key === "Home" || event.key === "End") walk(event, here);
    else if (event.key in ZOOMS) zoom(ZOOMS[event.key], seen(at[here]));
    else return;
    event.preventDefault();
  });

  const where = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = (WIDTH + 2 * EDGE) / box.width;
    return [(event.clientX - box.left) * scale - EDGE, (event.clientY - box.top) * scale - EDGE];
  };
  // A finger is wider than a point: the nearest one within its reach.
  const nearestTo = (event) => {
    const [x, y] = where(event);
    const reach = (FINGER * (WIDTH + 2 * EDGE)) / svg.getBoundingClientRect().width;
    const distance = (i) => Math.hypot(seen(at[i])[0] - x, seen(at[i])[1] - y);
    const near = all().filter((i) => distance(i) < reach);
    return near.reduce((best, i) => (distance(best) <= distance(i) ? best : i), near[0]);
  };
  const wasDragged = drags(svg, {
    where, isLasso: () => lasso.ariaPressed === "true", view: () => view, look, zoom,
    enclosed: (path, more) => select(all().filter((i) => within(path, seen(at[i]))), more),
  });
  svg.addEventListener("click", (event) => {
    const i = circles.includes(event.target) ? circles.indexOf(event.target) : nearestTo(event);
    if (!wasDragged() && points[i]) open(i);
  });
  svg.addEventListener("pointerover", (event) => tell(circles.indexOf(event.target)));

  // Points at their places in a map, in the colours of groups; the chosen one has the Tab key's stop.
  function draw(wanted, map, groups, chosen, text) {
    const focused = circles.indexOf(document.activeElement);
    const stop = Math.max(0, wanted.findIndex((point) => String(point.row) === chosen));
    note.textContent = text;
    if (points !== wanted) look({ k: 1, x: 0, y: 0 }, false);
    [points, at] = [wanted, positions(map, WIDTH, HEIGHT)];
    circles = points.map((point, i) => {
      const own = String(point.row) === chosen;
      const says = `${visible(`${point.before} ${point.word} ${point.after}`)}, ${visible(label(i) || groups.names[groups.group[i]])}${own ? ", chosen" : ""}`;
      const circle = drawn("circle", { r: points.length > 300 ? 4 : 6, class: `${groups.colour(groups.group[i])}${own ? " chosen" : ""}`, tabindex: i === stop ? 0 : -1, role: "option", "aria-label": says });
      if (own) circle.setAttribute("aria-current", "true");
      return circle;
    });
    look(view, false);
    svg.replaceChildren(...circles);
    if (focused >= 0) stand(stop, Math.min(focused, circles.length - 1));
  }

  // Which points are shown, and which are selected.
  function mark(isShown) {
    shown = isShown;
    svg.classList.toggle("some", selected.size > 0);
    circles.forEach((circle, i) => {
      circle.classList.toggle("off", !isShown(i));
      circle.classList.toggle("in", selected.has(i));
      circle.setAttribute("aria-selected", String(selected.has(i)));
    });
    const stop = circles.findIndex((circle) => circle.getAttribute("tabindex") === "0");
    if (all().length && !shown(stop)) {
      circles[stop].setAttribute("tabindex", -1);
      circles[all()[0]].setAttribute("tabindex", 0);
    }
  }

  hold(false);
  return { figure, draw, mark, look: (view) => look(view, false) };
}

// A map under the pointer: a drag moves it or draws a lasso; Ctrl and the wheel zoom, the wheel alone scrolls the page.
// ``where(event)`` on the map; ``view()`` and ``look(view)``: {k, x, y}; ``zoom(factor, where)``; ``enclosed(path, more)`` by the
// lasso. Returns whether what was last pressed was a drag, of which the click that follows is no click.
function drags(svg, { where, isLasso, view, look, zoom, enclosed }) {
  let [drag, dragged] = [null, false];

  const end = () => {
    drag?.line?.remove();
    drag = null;
  };
  svg.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (event.button === 0) drag = { from: [event.clientX, event.clientY], path: [where(event)], view: view(), line: null };
  });
  svg.addEventListener("pointermove", (event) => {
    if (!drag || (!dragged && Math.hypot(event.clientX - drag.from[0], event.clientY - drag.from[1]) < MOVED)) return;
    if (!dragged) {
      dragged = true;
      svg.setPointerCapture(event.pointerId);
      if (isLasso()) svg.append((drag.line = drawn("path", { class: "lasso" })));
    }
    drag.path.push(where(event));
    const [[x0, y0], [x, y]] = [drag.path[0], drag.path.at(-1)];
    if (drag.line) drag.line.setAttribute("d", `M${drag.path.map((one) => one.map((value) => value.toFixed(1)).join(" ")).join("L")}Z`);
    else look({ k: drag.view.k, x: drag.view.x + x - x0, y: drag.view.y + y - y0 });
  });
  svg.addEventListener("pointerup", (event) => {
    if (drag?.line) enclosed(drag.path, event.shiftKey);
    end();
  });
  svg.addEventListener("pointercancel", end);
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 200), where(event));
  }, { passive: false });
  return () => dragged;
}

// Whether a point lies within a closed path: a line from it leaves the path an odd number of times.
function within(path, [x, y]) {
  return path.reduce((inside, [x1, y1], i) => {
    const [x0, y0] = path[(i || path.length) - 1];
    return y0 > y !== y1 > y && x < ((x1 - x0) * (y - y0)) / (y1 - y0) + x0 ? !inside : inside;
  }, false);
}

// A map's points in a box of that size, from its top left; points that are one stand in the middle.
export function positions(map, width, height) {
  const shares = (values) => {
    const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
    return values.map((value) => (high > low ? (value - low) / (high - low) : 0.5));
  };
  const up = shares(map.y);
  return shares(map.x).map((share, i) => [width * share, height * (1 - up[i])]);
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
