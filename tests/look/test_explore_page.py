"""The explorer's door, and its page in a real browser: by keyboard, with hostile text, asking nothing of anyone else."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from pipeline.explore import server
from pipeline.explore.service import ExplorerService
from tests.look import browser
from tests.pipeline.conftest import store_of_records
from tests.pipeline.support import heed_signals

ENTER, LEFT, RIGHT, TAB, END, DOWN = "\ue007", "\ue012", "\ue014", "\ue004", "\ue010", "\ue015"


@dataclass
class Running:
    url: str
    token: str


@contextmanager
def served(service: ExplorerService) -> Iterator[Running]:
    listener = socket.create_server((server.HOST, 0))
    serving = server.server(service, "s3cret", listener)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not serving.started:
        time.sleep(0.02)
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", "s3cret")
    finally:
        serving.should_exit = True
        thread.join(20)
        service.wait()


@pytest.fixture(scope="module")
def running(service: ExplorerService) -> Iterator[Running]:
    with served(service) as found:
        yield found


def fetch(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=20
        ) as answer:
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_door(running: Running) -> None:
    token = {"X-Elmo-Token": running.token}
    assert fetch(f"{running.url}/api/about", **token)[0] == 200
    assert fetch(f"{running.url}/api/about")[0] == 403
    assert fetch(f"{running.url}/api/about", **{"X-Elmo-Token": "na\xefve"})[0] == 403
    assert fetch(f"{running.url}/api/about", Host="evil.example", **token)[0] == 421
    assert fetch(f"{running.url}/")[0] == 200
    assert fetch(f"{running.url}/%2e%2e/service.py")[0] == 404
    for wrong in ("sentence?number=x", "sentence", "neighbours?token=1&s=1,x", "search?q=%239999"):
        status, said = fetch(f"{running.url}/api/{wrong}", **token)
        assert (status, "error" in said) == (400, True)


def test_a_text_that_is_too_long_is_rejected_before_it_is_read(running: Running) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    head = (
        f"POST /api/embed HTTP/1.1\r\nHost: {host}:{port}\r\nX-Elmo-Token: {running.token}\r\n"
        "Content-Length: 300000000\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(head.encode() + b"a " * (server.BODY_BYTES // 2 + 1))
        assert connection.recv(1 << 10).startswith(b"HTTP/1.1 413 ")  # the rest is never sent
    assert fetch(f"{running.url}/api/about", **{"X-Elmo-Token": running.token})[0] == 200


def test_a_head_that_is_too_long_is_rejected(running: Running) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    head = f"GET /api/search?q={'a' * (1 << 20)} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
    with socket.create_connection((host, int(port)), 20) as connection:
        with suppress(ConnectionError):
            connection.sendall(head.encode())
        with suppress(ConnectionError):
            assert connection.recv(1 << 10).startswith(b"HTTP/1.1 400 ")
    assert fetch(f"{running.url}/api/about", **{"X-Elmo-Token": running.token})[0] == 200


def test_saved_tables_hold_no_formulas() -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("no node: apt-get install nodejs")
    texts = [
        "=HYPERLINK(1)",
        "+1+cmd",
        "-LRB-",
        "@SUM(A1)",
        "＝1",
        "a=b",
        "-",
        "-0.5",
        "1e-7",
        "a\tb\n",
    ]
    rows = [{"text": text, "x": -0.25} for text in texts]
    program = (server.STATIC / "tsv.js").read_text(encoding="utf-8")
    program += f"process.stdout.write(tsv(['text', 'x'], {json.dumps(rows)}));"
    command = [node, "--input-type=module"]
    found = subprocess.run(
        command, input=program, capture_output=True, encoding="utf-8", check=True
    )
    head, *lines = [line.split("\t") for line in found.stdout.split("\n")]
    assert head == ["text", "x"]
    assert [x for _, x in lines] == ["-0.25"] * len(texts)
    assert [text for text, _ in lines] == [
        *["'=HYPERLINK(1)", "'+1+cmd", "'-LRB-", "'@SUM(A1)", "'＝1"],
        *["a=b", "-", "-0.5", "1e-7", "a b "],
    ]


@pytest.fixture(scope="module")
def page(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser.chromium(tmp_path_factory.mktemp("browser")) as driver:
        driver.get(f"{running.url}/#{running.token}")
        until(driver, "document.body.dataset.sample === 'ready'")
        yield driver


def until(driver: Any, condition: str, seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while not driver.execute_script(f"return Boolean({condition})"):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def keys(driver: Any, selector: str, *typed: str) -> None:
    driver.find_element("css selector", selector).send_keys(*typed)


@pytest.mark.slow
def test_one_can_find_look_and_mix_by_keyboard(page: Any, running: Running) -> None:
    until(
        page,
        "document.querySelectorAll('#hits button').length === 30 && document.querySelectorAll('#tokens button').length === 9",
    )
    keys(page, "#q", "money", ENTER)
    until(
        page,
        "[...document.querySelectorAll('#hits button')].every(b => b.textContent.includes('money'))",
    )
    number = page.find_element("css selector", "#hits small").text
    keys(page, "#hits button", ENTER)
    until(
        page, "document.activeElement.matches('#tokens .hit')"
    )  # opened: the page began with that very sentence
    assert page.find_element("css selector", "#where").text.startswith(f"{number},")
    keys(page, "#tokens button:nth-child(9)", ENTER)
    until(
        page,
        "document.querySelectorAll('#lists li').length === 32 && document.querySelectorAll('#map circle').length > 20",
    )
    maps = "[...document.querySelectorAll('#maps button')].map(b => b.textContent + b.querySelector('svg').innerHTML)"
    mix, *layers = page.execute_script(f"return {maps}")
    assert [re.match("the mix|layer [012]", one) is not None for one in (mix, *layers)] == [
        True
    ] * 4
    assert "one point" in layers[0]  # a word's one vector
    before = page.execute_script("return document.querySelector('#mix').textContent")
    keys(page, "#sliders input", *[LEFT] * 100)  # s of layer 0 becomes 0
    until(page, "document.querySelector('output').textContent === '0.00'")
    until(page, f"(document.querySelector('#mix')?.textContent ?? {before!r}) !== {before!r}")
    assert page.execute_script("return document.activeElement.type") == "range"
    until(page, "document.body.dataset.mapped === '0,1,1'")
    moved, *same = page.execute_script(f"return {maps}")
    assert moved != mix  # by the mix of now
    assert same == layers
    norm = page.find_element("css selector", "#norm").text
    keys(page, "#sliders label:last-child input", *[RIGHT] * 50)  # γ
    until(page, f"document.querySelector('#norm').textContent !== {norm!r}")
    keys(page, "#even", ENTER)
    until(
        page,
        "[...document.querySelectorAll('output')].map(o => o.textContent).join() === '0.33,0.33,0.33,1.00'",
    )
    until(page, "document.body.dataset.mapped === '1,1,1'")
    browser.keep(page, "explore")
    assert browser.console(page) == []
    assert all(url.startswith((running.url, "data:")) for url in browser.requested(page))


def focused(driver: Any, attribute: str) -> str:
    return str(driver.execute_script(f"return document.activeElement.{attribute}"))


@pytest.mark.slow
def test_the_word_map_is_walked_by_arrow_keys_and_read_aloud(page: Any, running: Running) -> None:
    opened(page, f"{running.url}/#{running.token}?sentence=5&word=8")
    until(page, "document.querySelector('#map [aria-current]')")
    page.execute_script("document.querySelector('#map [tabindex=\"0\"]').focus()")
    assert (
        page.execute_script("return document.querySelectorAll('#map [tabindex=\"0\"]').length") == 1
    )  # one stop of the Tab key
    assert re.fullmatch(r".*\briver\b.*, cluster [1-5], chosen", focused(page, "ariaLabel"))
    assert (
        page.execute_script("return document.activeElement.getAttribute('aria-current')") == "true"
    )
    places = (
        "[...document.querySelectorAll('#map circle')]"
        ".map(c => [Number(c.getAttribute('cx')), Number(c.getAttribute('cy'))])"
    )
    points = page.execute_script(f"return {places}")
    here = "return [...document.querySelectorAll('#map circle')].indexOf(document.activeElement)"
    before = page.execute_script(here)
    walked = []
    for arrow, axis, sign in ((LEFT, 0, -1), (RIGHT, 0, 1), ("\ue013", 1, -1), ("\ue015", 1, 1)):
        for _ in range(len(points)):  # to the edge, and there it stays
            browser.press(page, arrow)
            after = page.execute_script(here)
            if after == before:
                break
            assert (points[after][axis] - points[before][axis]) * sign >= 0
            before = after
            walked.append(page.find_element("css selector", "#map-said").text)
        assert sign * points[before][axis] == max(sign * point[axis] for point in points)
    assert len(set(walked)) > 3
    assert all("river" in said for said in walked)
    browser.press(page, END)
    label, row = focused(page, "ariaLabel"), page.find_element("css selector", "#where").text
    browser.press(page, ENTER)
    until(page, f"document.querySelector('#where').textContent !== {row!r}")
    until(
        page, "document.activeElement.getAttribute('aria-current') === 'true'"
    )  # the word of that sentence is chosen
    assert label.split(",")[0].split(" river")[0] in " ".join(
        page.find_element("css selector", "#tokens").text.split()
    )
    assert browser.console(page) == []


def opened(driver: Any, url: str) -> None:
    driver.get("about:blank")
    driver.get(url)
    until(driver, "document.body.dataset.sample === 'ready'")


def shown(driver: Any) -> list[str]:
    script = """
        const text = (id) => document.getElementById(id)?.textContent;
        const chosen = [...document.querySelectorAll('#tokens [aria-pressed=true]')].map((b) => b.textContent).join();
        const large = document.querySelector('#maps [aria-pressed=true] b')?.textContent;
        return [document.querySelector('#q').value, text('where'), chosen, text('mix'), text('sliders'), large];
    """
    return [str(one) for one in driver.execute_script(script)]


@pytest.mark.slow
def test_the_address_holds_what_is_looked_at(page: Any, running: Running) -> None:
    opened(
        page,
        f"{running.url}/#{running.token}?q=money&sentence=5&word=8&s=0.5,1,0&gamma=2&layer=layer+1",
    )
    until(
        page,
        "document.querySelector('#mix') && document.querySelector('#maps [aria-pressed=true]')",
    )
    until(page, "document.body.dataset.mapped === '0.5,1,0'")
    first = shown(page)
    assert first[0] == "money"
    assert first[1].startswith("#5, doc-5")
    assert first[2] == "river"
    assert [value in first[4] for value in ("0.33", "0.67", "0.00", "2.00")] == [True] * 4
    assert first[5] == "layer 1"
    names: dict[str, Any] = {}
    exec(page.execute_script("return document.querySelector('#code').textContent"), names)
    assert np.array_equal(
        names["vectors"], elmo_store.ScalarMix(s=[1 / 3, 2 / 3, 0], gamma=2)(states=names["states"])
    )
    page.refresh()
    until(page, "document.querySelector('#maps [aria-pressed=true]')")
    assert shown(page) == first
    keys(page, "#hits li:nth-child(2) button", ENTER)
    until(page, "!document.querySelector('#where').textContent.startsWith('#5,')")
    assert page.execute_script(
        "return document.querySelector('#near').hidden && document.querySelector('#word').hidden"
    )
    page.back()
    until(page, f"document.querySelector('#where').textContent === {first[1]!r}")
    until(
        page,
        "document.querySelector('#maps [aria-pressed=true]') && !document.querySelector('#near').hidden",
    )
    assert shown(page) == first
    page.execute_script("document.querySelector('#skip').focus()")
    browser.press(page, ENTER)
    assert focused(page, "id") == "sentence"
    assert page.current_url.startswith(f"{running.url}/#{running.token}?")
    keys(page, "#q", "#MeToo", ENTER)
    assert page.execute_script("return document.querySelector('#problem').hidden")
    assert browser.console(page) == []


@pytest.mark.slow
def test_a_group_is_left_out_by_its_button_and_what_is_shown_is_saved(
    page: Any, running: Running, tmp_path: Path
) -> None:
    opened(page, f"{running.url}/#{running.token}?sentence=5&word=8&layer=layer+1")
    until(page, "document.querySelector('#senses button')")
    page.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    n = page.execute_script("return document.querySelectorAll('#map circle').length")
    for kept, pressed in ((n, "true"), (0, "false")):
        assert (
            page.execute_script("return document.querySelector('#senses h3 button').ariaPressed")
            == pressed
        )
        assert (
            page.execute_script("return document.querySelectorAll('#map circle:not(.off)').length")
            == kept
        )
        for kind in ("tsv", "json"):
            lines = saved(page, tmp_path, kind).splitlines()
            rows = json.loads(lines[0]) if kind == "json" else lines[1:]
            assert len(rows) == kept
        for button in page.find_elements("css selector", "#senses h3 button"):
            button.send_keys(ENTER)
    assert browser.console(page) == []


@pytest.mark.slow
def test_labels_are_a_legend_that_filters(page: Any, tiny_model: Path, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=document.title='owned'> \\ \" \u202e 🙂"
    words = [
        ["the", "bank", "of", "the", "wide", "river", "by", "a", "river"],
        ["a", "house", "of", "people", "with", "money", "and", "a", "river"],
    ]
    records = [{"text": words[i % 2], "sense": hostile if i % 3 else "plain"} for i in range(270)]
    with served(ExplorerService(store_of_records(tmp_path, records, tiny_model))) as running:
        opened(page, f"{running.url}/#{running.token}?sentence=5&word=8&by=sense")
        until(page, "document.querySelectorAll('#senses button').length > 2")
        legend = [one.text for one in page.find_elements("css selector", "#senses h3 button")]
        assert [one.rpartition(":")[0].strip() for one in legend] == [
            hostile.replace("\u202e", "‹U+202E›"),
            "plain",
        ]
        captions = [one.text for one in page.find_elements("css selector", "#maps button")]
        assert ["1-NN " in one for one in captions] == [
            True,
            False,
            True,
            True,
        ]  # layer 0 is one point
        shown = "return document.querySelectorAll('#map circle:not(.off)').length"
        n = page.execute_script(shown)
        page.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
        )
        code = saved(page, tmp_path, "py")
        names: dict[str, Any] = {}
        assert code.isascii()
        exec(code, names)
        assert set(names["groups"]) == {hostile, "plain"}
        assert len(names["vectors"]) == n
        keys(page, "#senses h3 button", ENTER)
        assert page.execute_script(shown) == n - int(legend[0].rpartition(": ")[2].replace(",", ""))
        assert (
            page.execute_script(
                "return document.querySelectorAll('#map [tabindex=\"0\"]:not(.off)').length"
            )
            == 1
        )
        assert "owned" not in page.title
        assert browser.console(page) == []


def saved(driver: Any, folder: Path, kind: str) -> str:
    """What the button for that kind of file downloads."""
    keys(driver, f"#save-{kind}", ENTER)
    end, file = time.monotonic() + 20, folder / f"occurrences.{kind}"
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    text = file.read_text(encoding="utf-8")
    file.unlink()
    return text


def points(condition: str) -> str:
    """Which points of the large map are so, in the page's language."""
    return (
        f"[...document.querySelectorAll('#map circle')].flatMap((c, i) => {condition} ? [i] : [])"
    )


SELECTED = points("c.getAttribute('aria-selected') === 'true'")
SPACE, SHIFT, CONTROL, ESCAPE = "\ue00d", "\ue008", "\ue009", "\ue00c"


@pytest.mark.slow
def test_points_are_selected_by_lasso_and_by_keyboard_and_read_by_python(
    page: Any, running: Running, hostile_store: Path, tmp_path: Path
) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    opened(page, f"{running.url}/#{running.token}?sentence=5&word=8&layer=layer+1&s=1,2,1&gamma=2")
    until(page, "document.querySelector('#senses button')")
    page.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    page.execute_script("document.querySelector('#map [tabindex=\"0\"]').focus()")
    browser.press(page, SPACE)
    assert len(page.execute_script(f"return {SELECTED}")) == 1
    ActionChains(page).key_down(SHIFT).send_keys(LEFT, LEFT).key_up(SHIFT).perform()
    walked = page.execute_script(f"return {SELECTED}")
    assert len(walked) == 3
    assert page.find_element("css selector", "#selected").text.startswith("3 of ")
    rows = [line.split("\t") for line in saved(page, tmp_path, "tsv").splitlines()]
    assert rows[0][:4] == ["id", "sentence", "token", "label"]
    store = elmo_store.open(hostile_store)
    assert [store.sentence(id=row[0]).tokens[int(row[2])] for row in rows[1:]] == ["river"] * 3
    keys(page, "#unselect", ENTER)
    assert page.execute_script(f"return {SELECTED}") == []

    # By the pointer: around two points that lie apart from each other; a drag opens nothing.
    where = page.find_element("css selector", "#where").text
    page.find_element("xpath", "//div[@class='plane'][1]//button[text()='lasso']").click()
    page.execute_script("document.querySelector('#map').scrollIntoView({block: 'center'})")
    box = page.find_element("css selector", "#map")
    width, height = box.size["width"], box.size["height"]
    pointer = (
        ActionChains(page)
        .move_to_element_with_offset(box, -width // 2 + 3, -height // 2 + 3)
        .click_and_hold()
    )
    for x, y in ((width // 2, 0), (0, height - 6), (-width // 2, 0)):
        pointer.move_by_offset(x, y)
    pointer.release().perform()
    left, near = (
        points("c.cx.baseVal.value < 300"),
        points("Math.abs(c.cx.baseVal.value - 300) < 12"),
    )
    chosen, half, edge = (
        set(page.execute_script(f"return {one}")) for one in (SELECTED, left, near)
    )
    assert chosen ^ half <= edge
    assert chosen
    assert page.execute_script("return document.querySelectorAll('.lasso').length") == 0
    assert page.find_element("css selector", "#where").text == where
    names: dict[str, Any] = {}
    exec(saved(page, tmp_path, "py"), names)
    assert [store.tokens(slice(row, row + 1)) for row in names["rows"]] == [["river"]] * len(chosen)
    assert len(names["groups"]) == len(chosen)
    states = store.read(rows=names["rows"])
    assert np.array_equal(names["vectors"], elmo_store.ScalarMix(s=[0, 1, 0])(states=states))
    assert browser.console(page) == []


@pytest.mark.slow
def test_a_map_is_zoomed_and_what_is_in_view_selected(page: Any, running: Running) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    opened(page, f"{running.url}/#{running.token}?sentence=5&word=8&layer=layer+1")
    until(page, "document.querySelector('#senses button')")
    page.execute_script("document.querySelector('#map [tabindex=\"0\"]').focus()")
    zoom, n = (
        "return document.querySelector('#map').dataset.zoom",
        "return document.querySelectorAll('#map circle').length",
    )
    ActionChains(page).key_down(CONTROL).send_keys("a").key_up(CONTROL).perform()
    assert len(page.execute_script(f"return {SELECTED}")) == page.execute_script(n)
    browser.press(page, "+", "+", "+")
    assert page.execute_script(zoom) == "3.38"
    ActionChains(page).key_down(CONTROL).send_keys("a").key_up(CONTROL).perform()
    assert 0 < len(page.execute_script(f"return {SELECTED}")) < page.execute_script(n)
    for _ in range(30):  # a point that is walked to is in view
        browser.press(page, LEFT)
    x, y = page.execute_script(
        "return ['cx', 'cy'].map((name) => Number(document.activeElement.getAttribute(name)))"
    )
    assert -16 <= x <= 616
    assert -16 <= y <= 416
    browser.press(page, "0", ESCAPE)
    assert page.execute_script(zoom) == "1.00"
    assert page.execute_script(f"return {SELECTED}") == []
    keys(page, "#planes button[title='zoom in']", ENTER)
    assert page.execute_script(zoom) == "1.50"
    where = page.find_element("css selector", "#where").text
    ActionChains(page).drag_and_drop_by_offset(
        page.find_element("css selector", "#map"), 60, 30
    ).perform()  # moves it
    assert page.find_element("css selector", "#where").text == where
    assert browser.console(page) == []


@pytest.mark.slow
def test_two_maps_stand_side_by_side(page: Any, running: Running) -> None:
    opened(page, f"{running.url}/#{running.token}?sentence=5&word=8&layer=layer+1")
    until(page, "document.querySelector('#senses button')")
    assert not page.find_element("css selector", "#map2").is_displayed()
    pick(page, "#beside", "layer 2")
    places = "[...document.querySelectorAll('{} circle')].map(c => c.getAttribute('cx') + ' ' + c.getAttribute('cy')).join()"
    first, second = (
        page.execute_script(f"return {places.format(one)}") for one in ("#map", "#map2")
    )
    assert first != second
    note = page.find_element("css selector", "#map2-note").text
    assert re.fullmatch(
        r"layer 2: .* of the variance is in this plane\. In the colours of layer 1\.", note
    )
    page.execute_script("document.querySelector('#map2 [tabindex=\"0\"]').focus()")
    browser.press(page, SPACE)
    assert len(page.execute_script(f"return {SELECTED}")) == 1  # in the other one, too
    keys(page, "#sliders input", *[LEFT] * 50)  # s of layer 0 becomes 0.5
    until(page, "document.body.dataset.mapped === '0.5,1,1'")
    keys(page, "#keep", ENTER)
    pick(page, "#beside", "s 0.20 0.40 0.40")
    kept = page.execute_script(f"return {places.format('#map2')}")
    keys(page, "#even", ENTER)
    until(page, "document.body.dataset.mapped === '1,1,1'")
    drawn = f"{places.format('#map')} === {first!r} && {places.format('#map2')} === {kept!r}"
    for look in (page.refresh, lambda: opened(page, page.current_url)):  # by a copied link
        look()
        until(page, "document.querySelector('#senses button')")
        until(page, drawn)
    pick(page, "#beside", "layer 2")
    page.back()
    until(page, drawn)
    assert page.execute_script("return document.querySelectorAll('#maps button').length") == 5
    page.execute_script("document.querySelector('#maps button:last-child').click()")
    keys(page, "#keep", ENTER)  # which drops it
    assert page.execute_script("return document.querySelectorAll('#maps button').length") == 4
    assert "kept" not in page.current_url
    page.execute_script("document.querySelector('#maps button:nth-child(3)').click()")
    pick(page, "#beside", "layer 2")
    assert browser.console(page) == []


def pick(driver: Any, selector: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(driver.find_element("css selector", selector)).select_by_value(value)


@pytest.mark.slow
def test_back_goes_to_the_map_that_was_looked_at_of_a_mixed_store_too(
    page: Any, mixed_store: Path
) -> None:
    with served(ExplorerService(elmo_store.open(mixed_store))) as running:
        opened(page, f"{running.url}/#{running.token}?sentence=5&word=8")
        until(page, "document.querySelectorAll('#maps button').length === 2")
        assert not page.find_element(
            "css selector", "#keep"
        ).is_displayed()  # there is no mix to keep
        large = "document.querySelector('#maps [aria-pressed=true] b').textContent"
        keys(page, "#maps button:last-child", ENTER)
        until(page, f"{large} === 'pos'")
        page.back()
        until(page, f"{large} === 'ner'")
        assert page.execute_script("return document.querySelector('#problem').hidden")
        assert browser.console(page) == []


@pytest.mark.slow
def test_what_was_found_is_marked(page: Any, running: Running) -> None:
    opened(page, f"{running.url}/#{running.token}?q=money")
    until(page, "document.querySelectorAll('#hits mark').length === 30")
    assert set(
        page.execute_script(
            "return [...document.querySelectorAll('#hits mark')].map(m => m.textContent)"
        )
    ) == {"money"}
    until(page, "document.querySelector('#tokens .hit')?.textContent === 'money'")


@pytest.mark.slow
def test_the_answer_stands_above_the_fold(page: Any, running: Running) -> None:
    with browser.sized(page, 1280, 720):
        opened(page, f"{running.url}/#{running.token}?q=money&sentence=5&word=8")
        until(page, "document.querySelectorAll('#lists li').length === 32")
        bottoms = "[...document.querySelectorAll('#lists li:nth-child(3)')].map(li => li.getBoundingClientRect().bottom)"
        assert max(page.execute_script(f"return {bottoms}")) < 720
        assert page.execute_script("return scrollY") == 0
        browser.keep(page, "explore-1280")


@pytest.mark.slow
def test_on_a_phone_what_is_opened_and_the_answer_come_into_view(
    page: Any, running: Running
) -> None:
    with browser.sized(page, 390, 700, mobile=True):
        opened(page, f"{running.url}/#{running.token}?q=money")
        until(page, "document.querySelector('#tokens button')")
        assert page.execute_script("return scrollY") == 0
        keys(page, "#hits li:nth-child(2) button", ENTER)
        box = "document.querySelector('{}').getBoundingClientRect()"
        until(
            page, f"scrollY > 0 && {box.format('#sentence')}.bottom < 701"
        )  # scrolled by whole pixels
        keys(page, "#tokens button", ENTER)
        until(
            page, f"document.querySelector('#lists li') && {box.format('#lists li')}.bottom < 700"
        )
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
        browser.keep(page, "explore-phone")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_has_contrast_with_the_pointer_on_it_too(
    running: Running, tmp_path: Path, dark: bool
) -> None:
    axe = pytest.importorskip(
        "axe_core_python.selenium", reason="axe is not installed: pip install '.[test-all]'"
    ).Axe()
    from selenium.webdriver.common.action_chains import ActionChains

    with browser.chromium(tmp_path, dark=dark) as driver:
        opened(driver, f"{running.url}/#{running.token}?q=money&sentence=5&word=8")
        until(
            driver,
            "document.querySelector('#maps button') && document.querySelectorAll('#lists li').length === 32",
        )
        pick(driver, "#beside", "layer 1")
        for pointed in (
            "#tokens [aria-pressed=true]",
            "#tokens button",
            "#hits button",
            "#lists button",
            "#maps button",
            "#even",
            "#senses h3 button",
            "#map circle:last-child",
            "#planes button",
        ):
            ActionChains(driver).move_to_element(
                driver.find_element("css selector", pointed)
            ).perform()
            assert driver.execute_script(
                f"return document.querySelector('{pointed}').matches(':hover')"
            )
            around = (
                pointed.partition(" ")[0] if pointed != "#tokens [aria-pressed=true]" else None
            )  # the whole page once
            found = axe.run(driver, around, {"runOnly": ["wcag2a", "wcag2aa"]})
            told = [
                (one["id"], [node["html"][:150] for node in one["nodes"]])
                for one in found["violations"]
            ]
            assert told == [], pointed


def test_of_many_questions_at_once_each_is_answered(running: Running) -> None:
    token = {"X-Elmo-Token": running.token}

    def asked(i: int) -> int:
        return fetch(f"{running.url}/api/neighbours?token=5&s=1,1,{i / 50}", **token)[0]

    with ThreadPoolExecutor(50) as pool:
        statuses = list(pool.map(asked, range(50)))
    assert set(statuses) == {200}


@pytest.mark.slow
def test_a_sentence_of_ones_own_is_embedded_and_its_neighbours_shown(
    page: Any, named_store: Path
) -> None:
    service = ExplorerService(elmo_store.open(named_store))
    service.wait()
    with served(service) as running:
        page.get("about:blank")
        browser.requested(page)  # by other tests
        page.get(f"{running.url}/#{running.token}")
        until(page, "document.querySelectorAll('#tokens button').length === 5")
        keys(page, "#text", "the bank lends money", ENTER)
        until(
            page,
            "document.querySelector('#where').textContent.startsWith('A sentence of your own')",
            90,
        )
        assert focused(page, "textContent") == "the"  # its first word, from where Tab goes on
        browser.press(page, RIGHT)
        assert focused(page, "textContent") == "bank"
        browser.press(page, ENTER)
        until(page, "document.querySelectorAll('#lists li').length === 32")
        # A sentence that stands in the store has the store's very vectors: the nearest is itself (in layer 0 the word anywhere).
        nearest = {
            box: page.find_element("css selector", f"#{box} li").text
            for box in ("mix", "layer0", "layer1", "layer2")
        }
        assert nearest.pop("layer0") in (
            "1.000 the bank lends money",
            "1.000 the bank of the river",
        )
        assert set(nearest.values()) == {"1.000 the bank lends money"}
        assert "norm of the chosen word" in page.find_element("css selector", "#norm").text
        code = page.execute_script("return document.querySelector('#code').textContent")
        names: dict[str, Any] = {}
        exec(code, names)
        assert np.array_equal(names["states"], elmo_store.open(named_store).sentence(1).read())
        browser.keep(page, "explore-own")
        assert browser.console(page) == []
        assert all(url.startswith((running.url, "data:")) for url in browser.requested(page))


@pytest.mark.slow
def test_hostile_text_is_shown_as_text(page: Any, running: Running) -> None:
    opened(page, f"{running.url}/#{running.token}")
    for number in (270, 271, 272):
        page.execute_script("document.querySelector('#q').value = arguments[0]", f"#{number}")
        keys(page, "#find button", ENTER)
        until(page, f"document.querySelector('#hits small')?.textContent === '#{number} '")
        keys(page, "#hits button", ENTER)
        until(page, f"document.querySelector('#where').textContent.startsWith('#{number},')")
        keys(page, "#tokens button", ENTER)
        until(
            page,
            "document.querySelector('#tokens button').ariaPressed === 'true' && !document.querySelector('#near').hidden",
        )
        text = page.execute_script("return document.body.innerText + document.title")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x07]", text)
        assert (
            page.execute_script("return document.querySelectorAll('body script, body img').length")
            == 0
        )
        assert "owned" not in page.title
        assert (
            page.execute_script(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            <= 0
        )
        if number == 270:
            assert "<script>document.title='owned'</script>" in text
    browser.keep(page, "explore-hostile")
    assert browser.console(page) == []


@pytest.mark.slow
def test_a_wrong_token_is_told_on_the_page(page: Any, running: Running) -> None:
    page.get("about:blank")
    page.get(f"{running.url}/#wrong")
    until(page, "!document.querySelector('#problem').hidden")
    assert "holds the token" in page.find_element("css selector", "#problem").text
    assert "tokens in" not in page.find_element("css selector", "#about").text


@pytest.mark.slow
def test_the_command_prints_an_address_and_ends_by_ctrl_c(hostile_store: Path) -> None:
    command = [sys.executable, "-m", "elmo_store", "explore", str(hostile_store)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"(http://127\.0\.0\.1:\d+)/#(\S+)", process.stdout.readline())
            assert found
            assert fetch(f"{found[1]}/api/about", **{"X-Elmo-Token": found[2]})[0] == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()
