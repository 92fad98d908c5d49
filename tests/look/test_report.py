"""``elmo-store report``: one file that asks for nothing, shows hostile text as text, and has a picture of everything there is."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import elmo_store
from elmo_store.figures import gather
from elmo_store.figures import plots as plot
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from pipeline.report.page import page, shown
from tests.look import browser
from tests.pipeline.conftest import Command

pytest.importorskip("matplotlib", reason="Matplotlib is not installed: pip install '.[plot]'")


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def report(hostile_store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", str(hostile_store), "--output", str(output)]) == 0
    return output.read_text(encoding="utf-8")


def test_the_page_has_no_script_and_asks_for_nothing(report: str) -> None:
    tags = Tags(report).found
    assert not [
        tag
        for tag, _ in tags
        if tag in ("script", "iframe", "link", "object", "embed") and tag != "link"
    ]
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in report
    assert "document.title" in report  # of the text: it stands there, as text


def test_direction_and_control_characters_are_shown_by_their_codes(report: str) -> None:
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\x00-\x08\x1b]", report)
    assert shown("a\u202eb<") == "<bdi>a‹U+202E›b&lt;</bdi>"


def test_every_picture_says_what_is_expected_and_has_its_numbers(
    report: str, hostile_store: Path
) -> None:
    figures = gather.gather(elmo_store.open(hostile_store)._view)
    there = [drawing for drawing in plot.PICTURES.values() if drawing.applies(figures)]
    assert len(there) == 3
    assert all(drawing.title in report for drawing in there)
    assert report.count("<b>Expected:</b>") == len(there)
    assert report.count('role="img"') == len(there)
    assert report.count("<summary>the numbers</summary>") == len(there)
    ids = [attributes["id"] for _, attributes in Tags(report).found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not re.search(r">-0\.0+<|>nan<", report)


def test_refused_records_stand_there_with_reason_and_text(report: str) -> None:
    assert "2 records refused" in report
    assert "&lt;b&gt;bold&lt;/b&gt;" in report


def test_a_mixed_store_shows_its_weights(report: str, mixed_store: Path) -> None:
    figures = gather.gather(elmo_store.open(mixed_store)._view)
    text = page(figures)
    assert "weight set" in text
    assert "1.2500" in text
    assert "weight set" not in report


def test_the_same_store_gives_the_same_page(report: str, hostile_store: Path) -> None:
    assert page(gather.gather(elmo_store.open(hostile_store)._view)) == report


def test_a_store_without_rows_has_a_report(embed: Command, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n\n\n", encoding="utf-8")
    assert embed(tmp_path / "store", inputs=[str(tmp_path / "blank.txt")]) == 0
    assert main(["report", str(tmp_path / "store")]) == 0
    assert "too few rows" in (tmp_path / "store" / "report.html").read_text(encoding="utf-8")


def test_what_is_no_store(tmp_path: Path) -> None:
    assert main(["report", str(tmp_path)]) == Exit.BAD_LOCATION


def test_vectors_come_first_then_text_and_job(report: str) -> None:
    order = [re.sub("<[^>]*>", "", title) for title in re.findall("<h2[^>]*>(.*?)</h2>", report)]
    assert order == ["The vectors", "The text", "Refused records", "The job"]


def test_a_length_is_drawn_as_how_many_sentences_have_it(hostile_store: Path) -> None:
    figures = gather.gather(elmo_store.open(hostile_store)._view)
    figure, numbers = plot.draw("lengths", figures)
    assert all(row[1] != "0" for row in numbers)  # bins of nothing are no rows
    (bars,) = figure.axes[0].patches
    heights, edges, _ = bars.get_data()  # type: ignore[attr-defined]
    assert (heights * (edges[1:] - edges[:-1])).sum() == figures.text.lengths[: len(heights)].sum()
    assert heights[list(edges).index(8)] == figures.text.lengths[4] / 8  # of 8 to 15 tokens


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it_without_a_word_on_its_console(
    report: str, tmp_path: Path, dark: bool
) -> None:
    place = tmp_path / "report.html"
    place.write_text(report, encoding="utf-8")
    with browser.chromium(tmp_path, dark=dark) as driver:
        driver.get(place.as_uri())
        assert driver.title.endswith("report of a store")  # no script of the text has run
        assert browser.console(driver) == []
        assert {url.partition(":")[0] for url in browser.requested(driver)} <= {"file", "data"}
        pictures = driver.execute_script(
            "return [...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width, s.clientHeight])"
        )
        assert len(pictures) == 3
        assert all(width > 500 and height > 80 for width, height in pictures)
        wide = driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0
        ink, paper = driver.execute_script(
            "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
        )
        assert (
            sum(map(int, re.findall(r"\d+", ink)[:3]))
            > sum(map(int, re.findall(r"\d+", paper)[:3]))
        ) == dark
        browser.keep(driver, f"report-{'dark' if dark else 'light'}")
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": "print"}
        )  # on paper: black on white, without what one clicks
        ink, paper = driver.execute_script(
            "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
        )
        assert [re.findall(r"\d+", colour)[:3] for colour in (ink, paper)] == [
            ["0"] * 3,
            ["255"] * 3,
        ]
        hidden = "[...document.querySelectorAll('nav, details')].every(e => getComputedStyle(e).display === 'none')"
        assert driver.execute_script(f"return {hidden}")
        whole = "[...document.querySelectorAll('figure')].every(e => getComputedStyle(e).breakInside === 'avoid')"
        assert driver.execute_script(f"return {whole}")


def test_a_page_elsewhere_is_written_through_a_link(hostile_store: Path, tmp_path: Path) -> None:
    page_file, link = tmp_path / "page.html", tmp_path / "link.html"
    page_file.write_text("the old page")
    link.symlink_to(page_file)
    assert main(["report", str(hostile_store), "--output", str(link)]) == Exit.COMPLETE
    assert link.is_symlink()
    assert page_file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (
        main(["report", str(hostile_store), "--output", str(tmp_path / "nowhere" / "page.html")])
        == Exit.BAD_LOCATION
    )
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "link.html"}
