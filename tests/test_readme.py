"""The README's first picture is a real run's page: the committed run file gives it again."""

from pathlib import Path

from collbench import runfile
from collbench.report.page import page
from tests.report.pages import text

ROOT = Path(__file__).parent.parent
RUN = ROOT / "benchmarks" / "results" / "2026-11-21-4xh200-peers" / "pairs.json"


def test_the_readme_shows_the_page_of_the_committed_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    indented = [f"    {line}" if line else "" for line in text(page(runfile.load(RUN))).rstrip("\n").splitlines()]

    assert "\n".join(["    $ collbench pairs", *indented]) in readme


def test_every_link_to_a_file_of_the_project_leads_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")):
        targets = [part.split(")")[0] for part in document.read_text(encoding="utf-8").split("](")[1:]]
        missing = [target for target in targets if not (document.parent / target.split("#")[0]).exists()]
        assert missing == [], document.name
