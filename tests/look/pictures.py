"""The README's explore.png of the sample's store, and its data, which a test compares with what is drawn today.

    elmo-store embed examples/sample --output STORE
    python -m tests.look.pictures STORE docs

Needs a headless Chromium (apt-get install chromium chromium-driver) and the extras explore and test.
"""

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import elmo_store
from pipeline.explore.server import HOST, server
from pipeline.explore.service import ExplorerService
from tests.look.browser import WIDTH, chromium

Data = dict[str, Any]
WORD = "states"
EXPLORER_HEIGHT = 1350  # pixels: down to the neighbours


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("output", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    store = elmo_store.open(args.store)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as driver:
        explore(driver, store, args.output / "explore.png")
    return 0


def keep(picture: Path, data: Data) -> None:
    """A picture's data beside it, a thing of it a line."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in data.items()
    )
    picture.with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def explore_data(service: ExplorerService, store: elmo_store.Store) -> Data:
    """The nearest occurrences to the first occurrence of `WORD` by layer: cosine and word; and whose they are."""
    sentence = service.sentence(service.search(WORD)["hits"][0]["number"])
    place = [token.lower() for token in sentence["tokens"]].index(WORD)
    layers = service.neighbours(str(sentence["first_row"] + place), [])["layers"]
    near = {
        layer["name"]: [[f"{one['cosine']:.3f}", one["word"]] for one in layer["found"]]
        for layer in layers
    }
    return {"model": store.manifest.model.fingerprint, **near}


def explore(driver: Any, store: elmo_store.Store, picture: Path) -> None:
    service = ExplorerService(store)
    service.wait()
    keep(picture, explore_data(service, store))
    listener = socket.create_server((HOST, 0))
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
    wait(
        driver,
        f"{hits}.length && {hits}.every(b => b.textContent.toLowerCase().includes('{WORD}'))",
    )
    driver.find_element("css selector", "#hits button").click()
    words = f"[...document.querySelectorAll('#tokens button')].filter(b => b.textContent.toLowerCase() === '{WORD}')"
    wait(driver, f"{words}.length")
    driver.execute_script(f"{words}[0].click()")
    wait(
        driver,
        "!document.querySelector('#word').hidden && document.querySelectorAll('#lists li').length",
    )
    driver.save_screenshot(str(picture))
    serving.should_exit = True
    thread.join(20)


def wait(driver: Any, condition: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not driver.execute_script(f"return Boolean({condition})"):
        if time.monotonic() > end:
            raise TimeoutError(condition)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
