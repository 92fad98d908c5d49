"""The pages' pictures.

    python -m benchmarks.pictures store STORE FOLDER        the README's report.png and explore.png, of the sample's store, and
                                                            their data, which a test compares with what is drawn today
    python -m benchmarks.pictures curve RUN/training FILE   a training run's curve, .svg, .png or .pdf

STORE is made by ``elmo-store embed examples/sample --output STORE``. The first needs a headless Chromium (apt-get install
chromium chromium-driver) and the extras plot, explore and test, the second Matplotlib.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import elmo_store
from benchmarks.shared.support import options_of, working_folder
from elmo_store.figures.plots import PICTURES
from elmo_store.figures.plots import draw as draw_picture
from model.training.run import CURVE, POINTS
from pipeline.commands.report import write_report
from pipeline.explore.server import bound, server
from pipeline.explore.service import ExplorerService
from pipeline.report.page import VECTOR_PICTURES
from tests.look.browser import WIDTH, chromium

Data = dict[str, Any]
WORD = "states"
DIRECTIONS = (("forward", "#0b6fb8", "-", "o"), ("backward", "#d1600f", "--", "s"))
EXPLORER_HEIGHT = 1350  # pixels: down to the neighbours


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("what", choices=("store", "curve"))
    parser.add_argument("source", metavar="STORE|FOLDER")
    parser.add_argument("output", type=Path, metavar="FOLDER|FILE")
    args = parser.parse_args()
    if args.what == "curve":
        draw(Path(args.source), args.output)
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    store = elmo_store.open(args.source)
    with working_folder() as folder, chromium(folder) as driver:
        report(driver, store, folder / "report.html", args.output / "report.png")
        explore(driver, store, args.output / "explore.png")
    return 0


def report(driver: Any, store: elmo_store.Store, page: Path, picture: Path) -> None:
    keep(picture, report_data(store))
    write_report(store.root, str(page))
    driver.get(page.as_uri())
    driver.execute_script("document.querySelector('#vectors').scrollIntoView()")
    driver.save_screenshot(str(picture))


def keep(picture: Path, data: Data) -> None:
    """A picture's data beside it, a thing of it a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in data.items())
    picture.with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def report_data(store: elmo_store.Store) -> Data:
    """The numbers of the report's pictures of vectors: each one's title → rows of cells; and whose they are."""
    figures = store.plot.figures
    drawn = [draw_picture(name, figures) for name in VECTOR_PICTURES if PICTURES[name].applies(figures)]
    return {"model": store.manifest.model.fingerprint, **{one.title: [list(row) for row in one.numbers] for one in drawn}}


def explore_data(service: ExplorerService, store: elmo_store.Store) -> Data:
    """The nearest occurrences to the first occurrence of `WORD` by layer: cosine and word; and whose they are."""
    sentence = service.sentence(service.search(WORD)["hits"][0]["number"])
    place = [token.lower() for token in sentence["tokens"]].index(WORD)
    layers = service.neighbours(str(sentence["first_row"] + place), None)["layers"]
    near = {layer["name"]: [[f"{one['cosine']:.3f}", one["word"]] for one in layer["found"]] for layer in layers}
    return {"model": store.manifest.model.fingerprint, **near}


def explore(driver: Any, store: elmo_store.Store, picture: Path) -> None:
    service = ExplorerService(store)
    service.wait()
    keep(picture, explore_data(service, store))
    listener = bound(0)
    serving = server(service, "token", listener)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not serving.started:
        time.sleep(0.05)
    driver.set_window_size(WIDTH, EXPLORER_HEIGHT)
    driver.get(f"http://127.0.0.1:{listener.getsockname()[1]}/#token")
    wait(driver, "document.body.dataset.sample === 'ready'")
    driver.find_element("css selector", "#q").send_keys(WORD, "\ue007")
    hits = "[...document.querySelectorAll('#hits button')]"
    wait(driver, f"{hits}.length && {hits}.every(b => b.textContent.toLowerCase().includes('{WORD}'))")
    driver.find_element("css selector", "#hits button").click()
    words = f"[...document.querySelectorAll('#tokens button')].filter(b => b.textContent.toLowerCase() === '{WORD}')"
    wait(driver, f"{words}.length")
    driver.execute_script(f"{words}[0].click()")
    wait(driver, "!document.querySelector('#word').hidden && document.querySelectorAll('#lists li').length")
    driver.save_screenshot(str(picture))
    serving.should_exit = True
    thread.join(20)


def wait(driver: Any, condition: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not driver.execute_script(f"return Boolean({condition})"):
        if time.monotonic() > end:
            raise TimeoutError(condition)
        time.sleep(0.05)


def draw(folder: Path, output: Path) -> None:
    """The sampled softmax's loss along the run, and, where it was measured, the full softmax's held-out perplexity.

    A panel each: the two are not the same thing. OSError where there is no curve.
    """
    from matplotlib.figure import Figure

    curve = np.loadtxt(folder / CURVE, skiprows=1, ndmin=2)  # [reports, 5]: tokens, seconds, two losses, rate
    points = _points(folder / POINTS)  # [points, 3]: tokens, two perplexities
    figure = Figure(figsize=(8.0 if len(points) else 5.0, 3.0), layout="constrained")
    loss, *rest = figure.subplots(1, 2 if len(points) else 1, squeeze=False)[0]
    for column, (name, colour, line, _) in enumerate(DIRECTIONS, 2):
        loss.plot(curve[:, 0] / 1e6, curve[:, column], line, color=colour, label=name, linewidth=1.4)
    loss.set_title("loss of the sampled softmax, nats", fontsize=10, loc="left")
    for perplexity in rest:
        for column, (name, colour, line, mark) in enumerate(DIRECTIONS, 1):
            perplexity.plot(points[:, 0] / 1e6, points[:, column], line, color=colour, marker=mark, markersize=5, label=name)
        for i, (tokens, *both) in enumerate(points):
            values = dict.fromkeys(f"{value:.0f}" for value in both)
            away = 7 if i % 2 == 0 else -15  # points, in turn above and below, so that neighbours have room
            perplexity.annotate(", ".join(values), (tokens / 1e6, max(both)), (0, away), textcoords="offset points", ha="center")
        perplexity.set_title("held-out perplexity, full softmax", fontsize=10, loc="left")
        perplexity.set_xlim(loss.get_xlim())
        perplexity.set_ylim(0, 1.2 * points[:, 1:].max())
    for panel in (loss, *rest):
        panel.set_xlabel("million tokens")
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=9, loc="upper right" if panel is loss else "lower right")
    figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)


def _points(path: Path) -> npt.NDArray[np.float64]:
    """Tokens and the two perplexities of each measurement, [points, 3]; none where the run measured none."""
    rows = path.read_text(encoding="utf-8").splitlines()[1:] if path.is_file() else []
    cells = [line.split("\t") for line in rows]
    return np.asarray([[float(cell) for cell in (row[0], *row[2:4])] for row in cells]).reshape(-1, 3)


if __name__ == "__main__":
    sys.exit(main())
