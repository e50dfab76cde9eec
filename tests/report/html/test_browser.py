"""The page in headless Chromium: what a reader chooses, hovers, types and prints, and that nothing leaves the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import pytest

from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Path, Run, StopReason
from collbench.report.html import render
from tests.browser import PATIENCE_MS, PATIENCE_S
from tests.builders import GIB, gpus, in_words, measured, pair_run, run_of
from tests.report.html.runs import EVIL, by_hand, hostile, page, recorded_content, recorded_gbs, usual_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


MIB = 2**20
pytestmark = pytest.mark.timeout(PATIENCE_S)
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
Open = Callable[..., "Page"]


@pytest.fixture
def opened(browser: Browser, tmp_path: FilePath) -> Iterator[Open]:
    """Open a page's text as a file. The test fails where it says, asks or fetches anything that it should not."""
    wrong: list[str] = []
    contexts = []

    def open_page(text: str, **settings: Any) -> Page:
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
        contexts.append(browser.new_context(**{"viewport": WIDE, **settings}))
        contexts[-1].set_default_timeout(PATIENCE_MS)
        tab = contexts[-1].new_page()
        tab.on("console", lambda said: wrong.append(f"{said.type}: {said.text}"))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        tab.on("request", lambda asked: wrong.append(asked.url) if asked.url != file.as_uri() else None)
        tab.goto(file.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def recorded_page() -> str:
    return render(recorded_content())


def choose(tab: Page, **wanted: str) -> None:
    """Take an option of each chooser by its text."""
    for title, text in wanted.items():
        tab.locator(f"article:visible label:has(span:text-is('{title}')) select").select_option(label=text)


def open_run(tab: Page, name: str) -> None:
    """Click the tab of this name and wait until its page is the shown one: a link to a part of a page acts later."""
    tab.get_by_role("link", name=name, exact=True).click()
    tab.locator(f".tabs a[aria-current=page]:text-is('{name}')").wait_for()


def cell(tab: Page, row: str, column: str) -> Locator:
    """Return the map's cell in the row and column of these heads."""
    grid = tab.locator("article:visible [role=grid]")
    heads = grid.locator("thead th").all_inner_texts()
    table_row = grid.locator("tbody tr", has=tab.locator(f"th:text-is('{row}')"))
    return table_row.locator("td").nth(heads.index(column))


def readout(tab: Page) -> str:
    return tab.locator("article:visible .readout").inner_text()


def test_cells_and_curves_hold_what_the_run_file_holds(opened: Open, recorded_page: str) -> None:
    tab = opened(recorded_page)
    for operation, size, row, column in (
        ("ce-write", "1G", 0, 1),
        ("allreduce", "1G", 2, 0),
        ("broadcast", "64M", 1, 2),
    ):
        choose(tab, Operation=operation, Size=size)
        cell(tab, f"GPU{row}", f"GPU{column}").hover()
        bytes_ = int(size[:-1]) * {"M": MIB, "G": GIB}[size[-1]]
        pair = [row, column] if "-" in operation else sorted((row, column))  # a collective's pair has no direction
        expected = f"{recorded_gbs(operation, pair, bytes_):.1f}"
        assert cell(tab, f"GPU{row}", f"GPU{column}").inner_text() == expected, operation
        joint = " → " if "-" in operation else ", "
        reported = readout(tab)
        assert f"{joint.join(f'GPU{index}' for index in pair)}\n" in reported, operation
        assert f"{expected} GB/s" in reported, operation
        for name, text in (("label", "NV18"), ("size", size), ("theory", "450.0 GB/s one way")):
            assert f"{name}\n{text}" in reported, operation
        assert "95% interval\n" in reported, operation
        assert "tier\n1, " in reported, operation
    # The curve of a chosen cell has its intervals, theory and figures.
    choose(tab, Operation="sm-read")
    cell(tab, "GPU2", "GPU3").click()
    chart = tab.locator("article:visible figure")
    assert "sm-read: bandwidth of GPU2 → GPU3" in chart.locator("figcaption").inner_text()
    assert chart.locator("svg .curve").count() == 12  # 4 · 3 links
    assert chart.locator("svg .chosen").count() == 1
    assert chart.locator("svg .dot").count() == chart.locator("svg .whisker").count() == 14  # one a size
    assert chart.locator("svg .theory-name").inner_html() == "theory NV18 450.0 GB/s"
    assert "NV18" in chart.locator("svg .end").all_text_contents()
    chart.locator("summary").click()
    last = chart.locator("tbody tr").last.inner_text().split("\t")
    assert last[:2] == ["1G", f"{recorded_gbs('sm-read', [2, 3], GIB):.1f} GB/s"]
    choose(tab, Operation="allreduce", Size="4M", Figure="time, µs")
    choose(tab, Operation="ce-read")  # what a reader chose is kept
    assert "ce-read at 4M: time, µs" in tab.locator(".title").inner_text()


def test_time_and_directions_can_be_chosen(opened: Open) -> None:
    tab = opened(page(by_hand(slow=360.0)))
    choose(tab, Operation="ce-write")
    assert "failed" not in tab.locator(".legend").inner_text()
    assert cell(tab, "GPU0", "GPU1").inner_text() == "360.0"
    assert cell(tab, "GPU1", "GPU0").inner_text() == "400.0"
    choose(tab, Direction="row receives from column")
    assert cell(tab, "GPU1", "GPU0").inner_text() == "360.0"
    choose(tab, Direction="the slower direction")
    assert [cell(tab, "GPU0", "GPU1").inner_text(), cell(tab, "GPU1", "GPU0").inner_text()] == ["360.0", "360.0"]
    choose(tab, Figure="time, µs")
    assert cell(tab, "GPU0", "GPU1").inner_text() == "2982.6"  # 2^30 B / 360e9 B/s
    choose(tab, Size="1G")
    tab.locator("svg .dot").first.click()  # a point of a curve
    assert "ce-write at 1M" in tab.locator(".title").inner_text()


def test_a_keyboard_walks_the_map_and_turns_through_the_sizes(opened: Open, recorded_page: str) -> None:
    tab = opened(recorded_page)
    choose(tab, Operation="ce-write")
    tab.locator("article:visible label select").last.focus()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Tab")  # the box that scrolls may take one
    if tab.evaluate("document.activeElement.getAttribute('role')") != "gridcell":
        tab.keyboard.press("Shift+Tab")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert tab.evaluate(focused).startswith("GPU0 → GPU1: ")
    seen = []
    for key in ("ArrowRight", "ArrowDown", "Home", "End", "ArrowUp", "Control+Home", "ArrowUp", "Control+End"):
        tab.keyboard.press(key)
        seen.append(tab.evaluate(focused).partition(":")[0])
    assert seen == [
        *("GPU0 → GPU2", "GPU1 → GPU2", "GPU1 → GPU0", "GPU1 → GPU3", "GPU0 → GPU3"),
        *("GPU0", "GPU0", "GPU3"),  # of the diagonal: "GPU0: the same device"
    ]
    tab.keyboard.press("ArrowLeft")
    assert readout(tab).startswith("GPU3 → GPU2\n")
    tab.keyboard.press("PageDown")
    assert tab.locator(".title").inner_text().startswith("ce-write at 256M")
    assert tab.evaluate(focused).startswith("GPU3 → GPU2: ")  # the focus stays
    for _ in range(20):
        tab.keyboard.press("PageDown")
    assert tab.locator(".title").inner_text().startswith("ce-write at 8 B:")
    assert tab.locator("[role=grid] td[tabindex='0']").count() == 1
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert tab.evaluate(outline) == "solid"


def test_several_runs_have_a_page_each_and_one_of_what_differs(opened: Open) -> None:
    tab = opened(page(by_hand(), by_hand(slow=360.0)))
    assert tab.locator("article:visible").count() == 1
    tab.evaluate("location.hash = 'run-1-health'")  # a link to a part of another run opens that run
    tab.locator("#run-1").wait_for()
    assert tab.locator("#run-1-health").is_visible()
    tab.evaluate("location.hash = 'run-0'")
    tab.locator("#run-0").wait_for()
    open_run(tab, "b.json")
    choose(tab, Operation="ce-write")
    assert cell(tab, "GPU0", "GPU1").inner_text() == "360.0"
    open_run(tab, "b.json over a.json")
    assert tab.locator("article:visible h1").inner_text() == "b.json over a.json"
    assert "ce-write GPU0→GPU1" in tab.locator("article:visible").inner_text()
    assert tab.locator("[aria-current=page]").inner_text() == "b.json over a.json"
    tab.go_back()
    tab.locator("#run-1").wait_for()
    assert tab.locator("article:visible").get_attribute("id") == "run-1"


@pytest.mark.parametrize(
    ("what", "run"),
    [
        ("nothing", lambda: run_of(gpus(2), [])),
        ("16 GPUs", lambda: pair_run(16, lambda a, b: 100.0 + a + b)),
    ],
)
def test_other_runs_open_without_a_complaint(opened: Open, what: str, run: Callable[[], Run]) -> None:
    tab = opened(page(run()))
    assert tab.locator("h1").is_visible()
    assert tab.locator("[role=grid]").count() == (0 if what == "nothing" else 1)
    if what == "16 GPUs":
        assert cell(tab, "GPU14", "GPU15").inner_text() == "129.0"
        assert tab.evaluate("document.documentElement.scrollWidth") <= WIDE["width"]


def unlike_links() -> Run:
    """A run of four GPUs whose links are of one and of two NVLinks; GPU1 → GPU3 hangs, GPU0 → GPU3 was left out."""
    links = {(0, 1): 24.0, (0, 2): 24.1, (1, 2): 47.9, (2, 3): 48.3}
    measurements = [measured(Operation.CE_WRITE, link, gbs, size) for link, gbs in links.items() for size in (MIB, GIB)]
    measurements += [
        Measurement(
            DataPoint(Operation.CE_WRITE, (1, 3), size),
            [],
            StopReason.FAILED,
            failure=in_words("hang: no answer in 5 s"),
        )
        for size in (MIB, GIB)
    ]
    paths = [
        Path(link, label, theory_gbs=gbs)
        for link, label, gbs in (((0, 1), "NV1", 25.0), ((0, 2), "NV1", 25.0), ((1, 2), "NV2", 50.0))
    ]
    return run_of(
        gpus(4), measurements, [*paths, Path((2, 3), "NV2", theory_gbs=50.0), Path((1, 3), "NV2", theory_gbs=50.0)]
    )


def test_every_limit_has_its_line_so_that_no_curve_passes_the_only_one(opened: Open) -> None:
    tab = opened(page(unlike_links()))
    chart = tab.locator("article:visible figure svg")
    for row, column, own in (("GPU0", "GPU1", "theory NV1 25.0 GB/s"), ("GPU1", "GPU2", "theory NV2 50.0 GB/s")):
        cell(tab, row, column).click()
        names = chart.locator(".theory-name").all_text_contents()
        assert names == ["theory NV2 50.0 GB/s", "theory NV1 25.0 GB/s"]
        assert chart.locator(".theory").count() == 2
        assert chart.locator(".theory-name:not(.other)").all_text_contents() == [own]
    highest = min(float(line.get_attribute("y1") or 0) for line in chart.locator(".theory").all())
    dots = [float(dot.get_attribute("cy") or 0) for dot in chart.locator(".dot").all()]
    assert min(dots) > highest  # above is less


def test_the_slower_direction_of_a_link_that_failed_is_the_failed_one(opened: Open) -> None:
    run = unlike_links()
    run.measurements += [measured(Operation.CE_WRITE, (3, 1), 48.0, size) for size in (MIB, GIB)]
    tab = opened(page(run))
    choose(tab, Direction="the slower direction")
    assert [cell(tab, "GPU1", "GPU3").inner_text(), cell(tab, "GPU3", "GPU1").inner_text()] == ["✕", "✕"]


def test_failed_not_measured_and_the_diagonal_look_different(opened: Open) -> None:
    tab = opened(page(unlike_links()))
    assert readout(tab).startswith("GPU2 → GPU3\n")  # the best link is chosen first
    texts = {name: cell(tab, *name).inner_text() for name in (("GPU1", "GPU3"), ("GPU0", "GPU3"), ("GPU2", "GPU2"))}
    assert list(texts.values()) == ["✕", "–", ""]  # failed, not measured, no link
    failed = cell(tab, "GPU1", "GPU3")
    look = "(cell) => [cell].map(getComputedStyle).map((s) => s.backgroundColor + s.backgroundImage + s.boxShadow)[0]"
    assert len({cell(tab, *name).evaluate(look) for name in texts}) == 3
    assert cell(tab, "GPU0", "GPU3").get_attribute("aria-label") == "GPU0 → GPU3: not measured"
    assert cell(tab, "GPU2", "GPU2").get_attribute("aria-label") == "GPU2: the same device"
    assert failed.get_attribute("aria-label") == "GPU1 → GPU3: failed"
    legend = tab.locator(".legend").inner_text()
    assert [word in legend for word in ("✕ failed", "– not measured", "same device")] == [True] * 3
    failed.hover()
    assert "hang: no answer in 5 s" in readout(tab)
    assert "\nfailed\n" in readout(tab)


def test_a_hostile_machines_words_stay_text(opened: Open) -> None:
    tab = opened(page(hostile()))
    tags = tab.evaluate("[...new Set([...document.querySelectorAll('body *')].map((one) => one.localName))].sort()")
    allowed = opened(usual_page()).evaluate(
        "[...new Set([...document.querySelectorAll('body *')].map((one) => one.localName))].sort()"
    )
    assert set(tags) <= {*allowed, "pre", "code"}
    assert "img" not in tags
    assert EVIL in (tab.locator("h1").text_content() or "")
    choose(tab, Operation="ce-write", Size="64 B")
    tab.locator("[role=grid] td[aria-label$=': failed']").first.hover()
    assert f"failed: {EVIL}" in (tab.locator(".readout").text_content() or "")
    choose(tab, Operation="allreduce")
    assert EVIL in (tab.locator("svg .end").first.text_content() or "")
    assert tab.evaluate("document.querySelectorAll('script').length") == 2  # the data and ours


def test_a_script_that_gets_in_does_not_run(browser: Browser, tmp_path: FilePath, recorded_page: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(recorded_page.replace("<main", "<script>window.ran = 1</script><main"), encoding="utf-8")
    tab = browser.new_page()
    tab.set_default_timeout(PATIENCE_MS)
    tab.goto(file.as_uri())
    assert tab.evaluate("window.ran === undefined")
    assert "TrustedHTML" in tab.evaluate("try { document.body.innerHTML = '<b>' } catch (error) { String(error) }")
    tab.close()


def test_without_script_the_tables_can_be_read(opened: Open, recorded_page: str) -> None:
    tab = opened(recorded_page, java_script_enabled=False)
    for text in ("396.3  396.2  396.1", "any of them", "NCCL_NVLS_ENABLE=0", "31–37 °C"):
        assert tab.get_by_text(text).first.is_visible()


def test_a_phone_scrolls_downwards_only(opened: Open) -> None:
    tab = opened(page(hostile(), by_hand()), viewport=NARROW)
    tab.evaluate("document.querySelectorAll('article details').forEach((one) => { one.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_a_print_shows_tiers_and_what_was_opened_and_no_controls(opened: Open, recorded_page: str) -> None:
    tab = opened(recorded_page, color_scheme="dark")
    tab.locator("summary", has_text="sm-read at 8 B").click()
    closed = "document.querySelectorAll('details:not([open])').length"
    before = tab.evaluate(closed)
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    shown = tab.locator("summary:visible").all_inner_texts()
    works = ("ce-write", "ce-read", "sm-write", "sm-read", "allreduce", "broadcast")
    assert [text.split(":")[0] for text in shown if " at 1G" in text] == [f"{work} at 1G" for work in works]
    others = [text for text in shown if " at 1G" not in text]
    assert [text.partition(":")[0] for text in others] == ["Not judged", "sm-read at 8 B"]
    assert not tab.locator(".controls").is_visible()
    assert not tab.locator(".theme").is_visible()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(26, 32, 40)"  # the light theme's ink
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate(closed) == before
    pdf = tab.pdf(format="A4")
    assert pdf.startswith(b"%PDF-")
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page>") <= 30
