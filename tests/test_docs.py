"""Numbers in the README and the docs are those of the committed result files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelseed.cli.app import app
from kernelseed.reproduction import DATA, read_results
from kernelseed.reproduction import panels as figure
from kernelseed.reproduction import running as runs_room

ROOT = Path(__file__).parent.parent
TABLES = sorted(
    path.relative_to(ROOT / "results")
    for path in (ROOT / "results").glob("*/*")
    if path.is_dir() and path.parent.name != "earlier"  # what the same commands gave before
)


def test_the_pages_say_what_the_result_files_say():
    ran = subprocess.run([sys.executable, ROOT / "docs/build.py", "--check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_every_section_stands_on_a_page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import build

    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in build.PAGES)
    assert sorted(re.findall(r"<!-- begin (\w+) -->", pages)) == sorted(build.SECTIONS)


def test_the_figure_shows_what_the_result_files_say():
    drawn = figure.draw({data: read_results(ROOT / "results/paper" / data) for data in DATA})
    assert figure.points(drawn) in (ROOT / "docs/figures/reproduction.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", TABLES, ids=str)
def test_the_command_beside_a_table_is_the_one_that_makes_it(folder, monkeypatch, tmp_path):
    """With all results in place, it finds nothing to train and nothing to complain of; `make results` runs it too."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import build

    command = build.reproducing(*map(str, folder.parts))
    trained = []
    monkeypatch.setattr(runs_room, "_train", lambda run, *rest: trained.append(run.name))
    monkeypatch.chdir(ROOT)
    ran = CliRunner().invoke(app, [*command.split()[1:], "--json", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert trained == []
    # Which rows are there already is not the Makefile's business.
    makefile, command = (re.sub(r" --rows \S+", "", text) for text in ((ROOT / "Makefile").read_text(), command))
    assert f"-m {command}\n" in makefile


def test_every_local_link_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
