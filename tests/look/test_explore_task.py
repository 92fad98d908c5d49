"""The explorer's task in a browser, from the search to the suggested s: by keys alone, its numbers those of NumPy."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.mixing.scalar_mix import layers_of_states
from pipeline.explore.service import ExplorerService
from tests.look import browser
from tests.look.conftest import one_nearest
from tests.look.test_explore_page import (
    DOWN,
    ENTER,
    LEFT,
    TAB,
    Running,
    focused,
    keys,
    opened,
    served,
    until,
)

MOST_PRESSES = 30


@pytest.fixture(scope="module")
def running(senses_store: Path) -> Iterator[Running]:
    with served(ExplorerService(elmo_store.open(senses_store))) as found:
        yield found


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser.chromium(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture
def page(driver: Any, running: Running) -> Iterator[Any]:
    opened(driver, f"{running.url}/#{running.token}")
    until(driver, "document.querySelectorAll('#hits button').length === 30")
    yield driver
    assert browser.console(driver) == []


CAPTIONS = (
    "return [...document.querySelectorAll('#maps button')].map((one) => one.innerText.split('\\n'))"
)


@pytest.mark.slow
def test_from_the_search_to_the_suggested_s_by_keys_alone(page: Any, senses_store: Path) -> None:
    presses = 0

    def press(*typed: str) -> None:
        nonlocal presses
        presses += len(typed)
        browser.press(page, *typed)

    def tab_to(selector: str) -> None:
        while not page.execute_script(f"return document.activeElement.matches({selector!r})"):
            press(TAB)
            assert presses < MOST_PRESSES, selector

    tab_to("#q")
    press(*"bank", ENTER)
    until(page, "document.querySelectorAll('#hits mark').length === 30")
    tab_to("#hits button")
    press(ENTER)
    until(page, "document.activeElement.matches('#tokens .hit')")  # the word that was looked for
    press(ENTER)
    until(page, "document.querySelectorAll('#map circle').length === 240")
    tab_to("#by")
    press("s")  # enough of "sense"
    until(page, "document.querySelector('#maps')?.textContent.includes('1-NN')")
    tab_to("#suggest")
    press(ENTER)
    until(page, "document.querySelector('#suggested').textContent.startsWith('s 0')")
    assert presses < MOST_PRESSES

    said = page.find_element("css selector", "#suggested").text
    s = [float(share) for share in said.split(":")[0].split()[1:]]
    until(page, f"document.body.dataset.mapped === '{','.join(f'{share:g}' for share in s)}'")
    outputs = page.execute_script(
        "return [...document.querySelectorAll('#sliders output')].map((one) => one.textContent)"
    )
    assert outputs == [f"{share:.2f}" for share in [*s, 1]]

    store = elmo_store.open(senses_store)
    labels = np.array([sentence.fields["sense"] or "" for sentence in store.sentences()])
    rows = np.array(
        [sentence.span[0] + sentence.tokens.index("bank") for sentence in store.sentences()]
    )[labels != ""]
    layers = layers_of_states(store.read(rows=rows).astype(np.float32))
    real = labels[labels != ""]
    in_sample = one_nearest(np.tensordot(layers, np.array(s), (1, 0)), real)
    singles = [one_nearest(layers[:, k], real) for k in (1, 2)]
    service = ExplorerService(store)
    service.wait()
    assert said.startswith(service.suggest("bank", "sense")["said"])
    assert "on held-out occurrences" in said
    assert said.endswith("are of the same occurrences that s was chosen on.")
    captions = {name: lines for name, *lines in page.execute_script(CAPTIONS)}
    for name, right in zip(("the mix", "layer 1", "layer 2"), (in_sample, *singles), strict=True):
        assert captions[name][0].removesuffix(" (highest)") == f"1-NN {right:.3f}"
    assert captions["the mix"][0].endswith(" (highest)")
    assert captions["layer 0 (x)"] == ["one point: all are the same vector"]
    assert (
        "Scores are those of sense, over 216 labelled"
        in page.find_element("css selector", "#word-note").text
    )
    shown = page.execute_script(
        "return [...document.querySelectorAll('#mix li')].map((one) => one.textContent)"
    )
    senses = {f"{sentence.fields['sense']}" for sentence in store.sentences()}
    assert all(re.match(r"\d\.\d{3} ", one) for one in shown)
    assert any(one.rpartition(" · ")[2] in senses for one in shown)


@pytest.mark.slow
def test_without_a_mix_nothing_stale_is_shown(page: Any, running: Running) -> None:
    opened(page, f"{running.url}/#{running.token}?sentence=5&word=4&by=sense")
    until(page, "document.querySelector('#maps button')")
    for slider in page.find_elements("css selector", "#sliders input")[:3]:
        slider.send_keys(*[LEFT] * 100)
    for where in ("#mix", "#word-note", "#code"):
        until(page, f"document.querySelector('{where}').textContent.includes('there is no mix')")
    assert page.find_element("css selector", "#norm").text == ""
    assert not page.find_element("css selector", "#word-said").is_displayed()
    assert page.execute_script("return document.querySelector('#problem').hidden")
    keys(page, "#even", ENTER)
    until(
        page,
        "document.querySelectorAll('#maps button').length === 4 && document.querySelectorAll('#mix li').length === 8",
    )


@pytest.mark.slow
def test_lists_are_one_tab_stop_and_an_opened_point_keeps_the_scroll_position(
    page: Any, running: Running
) -> None:
    opened(page, f"{running.url}/#{running.token}?q=bank&sentence=5&word=4&by=sense")
    until(page, "document.querySelector('#maps button')")
    for box in ("#hits", "#tokens", "#lists", "#maps", "#senses", "#map", "#planes .tools"):
        stops = f"[...document.querySelector({box!r}).querySelectorAll('button, circle')].filter((one) => one.tabIndex === 0)"
        assert page.execute_script(f"return {stops}.length") == 1, box
    first = page.find_element("css selector", "#hits button")
    first.send_keys(DOWN)
    assert page.execute_script(
        "return document.activeElement === document.querySelectorAll('#hits button')[1]"
    )
    where = page.find_element("css selector", "#where").text
    page.execute_script("document.querySelector('#map').scrollIntoView({block: 'center'})")
    top = page.execute_script("return document.querySelector('#map').getBoundingClientRect().top")
    page.execute_script(
        "document.querySelector('#map [tabindex=\"0\"]').focus({preventScroll: true})"
    )
    browser.press(page, LEFT, ENTER)
    until(page, f"document.querySelector('#where').textContent !== {where!r}")
    until(
        page, "document.activeElement.getAttribute('aria-current') === 'true'"
    )  # the focus stays on the map
    assert focused(page, "tagName") == "circle"
    assert page.execute_script(
        "return document.querySelector('#map').getBoundingClientRect().top"
    ) == pytest.approx(top, abs=1)


@pytest.mark.slow
def test_the_layers_are_side_by_side_and_two_maps_fill_the_width(
    page: Any, running: Running
) -> None:
    with browser.sized(page, 1024, 800):
        opened(page, f"{running.url}/#{running.token}?sentence=5&word=4&by=sense&beside=layer+2")
        until(
            page,
            "document.querySelector('#maps button') && document.querySelectorAll('#lists > div').length === 4",
        )
        tops = "return [...document.querySelectorAll('#lists > div')].map((one) => one.getBoundingClientRect().top)"
        assert len(set(page.execute_script(tops))) == 1
        wide, large = (
            page.execute_script(f"return document.querySelector('{one}').clientWidth")
            for one in ("#planes", "#word-said")
        )
        assert wide == large
        starts = "return [...document.querySelectorAll('#sliders input')].map((one) => one.getBoundingClientRect().left)"
        assert len(set(page.execute_script(starts))) == 2  # in two columns
        keys(page, "#planes .plane:first-child button[title='zoom in']", ENTER)
        assert [
            page.execute_script(f"return document.querySelector('{one}').dataset.zoom")
            for one in ("#map", "#map2")
        ] == ["1.50"] * 2
        until(page, "document.querySelectorAll('#map2 circle').length === 240")
