"""The README's two pictures, made from the sample's store: ``python -m benchmarks.pictures STORE FOLDER``.

STORE is made by ``elmo-store embed examples/sample --output STORE``. Needs a headless Chromium (apt-get install chromium
chromium-driver) and the extras plot, explore and test. Writes report.png and explore.png.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import elmo_store
from pipeline.explore.server import bound, server
from pipeline.explore.service import Service
from pipeline.report.page import write_report
from tests.look.browser import WIDTH, chromium

WORD = "states"
EXPLORER_HEIGHT = 1350  # pixels: down to the neighbours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    store = elmo_store.open(args.store)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as driver:
        report(driver, store, Path(folder) / "report.html", args.folder / "report.png")
        explore(driver, store, args.folder / "explore.png")
    return 0


def report(driver: Any, store: elmo_store.Store, page: Path, picture: Path) -> None:
    write_report(store.root, str(page))
    driver.get(page.as_uri())
    driver.execute_script("document.querySelector('#vectors').scrollIntoView()")
    driver.save_screenshot(str(picture))


def explore(driver: Any, store: elmo_store.Store, picture: Path) -> None:
    service = Service(store)
    service.wait()
    listener = bound("127.0.0.1", 0)
    serving = server(service, "token", listener, "127.0.0.1")
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


if __name__ == "__main__":
    sys.exit(main())
