// A map under the pointer: a drag moves it or draws a lasso; Ctrl and the wheel zoom, the wheel alone scrolls the page.

import { drawn } from "./page.js";

const MOVED = 4; // pixels from which a press is a drag

// ``where(event)`` on the map; ``view()`` and ``look(view)``: {k, x, y}; ``zoom(factor, where)``; ``enclosed(path, more)`` by the
// lasso. Returns whether what was last pressed was a drag, of which the click that follows is no click.
export function drags(svg, { where, isLasso, view, look, zoom, enclosed }) {
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
export function within(path, [x, y]) {
  return path.reduce((inside, [x1, y1], i) => {
    const [x0, y0] = path[(i || path.length) - 1];
    return y0 > y !== y1 > y && x < ((x1 - x0) * (y - y0)) / (y1 - y0) + x0 ? !inside : inside;
  }, false);
}
