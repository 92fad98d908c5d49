"""A headless Chromium for the tests of pages, through Debian's chromedriver; tests skip with a reason where there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDTH, HEIGHT = 1100, 1000


@contextmanager
def chromium(folder: Path, *, dark: bool = False) -> Iterator[Any]:
    """A driver whose console log can be read; it may reach this machine only."""
    selenium = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: pip install '.[test-all]'"
    )
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver (CI has them)")
    options = selenium.ChromeOptions()
    options.binary_location = browser
    arguments = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--window-size={WIDTH},{HEIGHT}",
    ]
    arguments += [
        f"--user-data-dir={folder / 'profile'}",
        "--no-first-run",
        "--disable-background-networking",
    ]
    arguments += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    if dark:
        arguments.append("--force-dark-mode")
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = selenium.ChromeService(
        executable_path=driver, env={**os.environ, "HOME": str(folder)}
    )
    made = selenium.Chrome(options=options, service=service)
    made.set_page_load_timeout(60)
    made.set_script_timeout(120)  # axe, on a busy machine
    try:
        yield made
    finally:
        made.quit()


@contextmanager
def sized(driver: Any, width: int, height: int, *, mobile: bool = False) -> Iterator[None]:
    """The page's own size, which a window's is not, while the context lasts."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def console(driver: Any) -> list[str]:
    """What the page said on its console since the last look."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requested(driver: Any) -> list[str]:
    """Addresses that the browser asked for since the last look."""
    import json

    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in urls if not url.startswith("chrome://")]  # its own new tab


def press(driver: Any, *typed: str) -> None:
    """Press keys where the focus is."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*typed).perform()


def keep(driver: Any, name: str) -> None:
    """Leave a screenshot in the folder that ELMO_STORE_SCREENSHOTS names, if it does."""
    folder = os.environ.get("ELMO_STORE_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(Path(folder) / f"{name}.png"))
