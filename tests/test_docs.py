"""Numbers in the README and the docs are those of the committed result files."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import kernelseed as ks
from kernelseed.cli.app import app
from kernelseed.reproduction import DATA, PRESETS, draw_figure, figure_points, read_results
from kernelseed.training import Config, train

ROOT = Path(__file__).parent.parent
TABLES = sorted(
    path.relative_to(ROOT / "results")
    for path in (ROOT / "results").glob("*/*")
    if path.is_dir() and path.parent.name.partition("-")[0] in PRESETS
)


@pytest.fixture
def build(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("build")


def test_the_pages_say_what_the_result_files_say(build, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["build.py", "--check"])
    with pytest.raises(SystemExit) as stopped:
        build.main()
    assert stopped.value.code == 0


def test_every_section_stands_on_a_page(build):
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in build.PAGES)
    assert sorted(re.findall(r"<!-- begin (\w+) -->", pages)) == sorted(build.SECTIONS)


def test_a_goal_stands_beside_its_floor_and_what_was_not_measured_is_left_out(build):
    goal, ratio = build.benchmark_tables.goals.Goal, lambda number: {"ratio": number}
    steps = {"KSN .25": ratio(1.7), "products of KSN .25": ratio(0.5), "BNN": ratio(1.15), "floor of BNN": ratio(1.1)}
    measured = {"steps": steps, "steps_bf16": {"KSN .25": ratio(1.8)}}
    ksn, bnn = goal("a", "steps", "KSN .25", "products", "memory"), goal("b", "steps", "BNN", 1.15, "memory")
    assert ksn.row(measured) == ["a", "1.70", "1.65", "1.50", "the draw's passes"]
    assert bnn.row(measured) == ["b", "**1.15**", "1.15", "1.10", "memory"]
    assert goal("c", "steps_bf16", "KSN .25", "float32").row(measured) == ["c", "1.80", "1.70", "", ""]
    steps["floor of KSN .25"] = ratio(1.6)
    assert ksn.row(measured) == ["a", "1.70", "1.65", "1.60", "memory"]
    assert goal("d", "predict", "KSN .25", 1.0).row(measured) is None


def test_a_column_is_the_median_of_the_runs_with_how_far_they_lie_apart(build):
    one, two, three = ({"steps": {"BNN": {"ratio": ratio, "ms": 10 * ratio}}} for ratio in (1.5, 1.0, 1.2))
    found = build.benchmark_tables.median([one, two, three | {"folded": {"BNN": {"ratio": 2.0}}}])
    assert found["steps"]["BNN"] == {"ratio": 1.2, "ms": 12.0, "range": [1.0, 1.5]}
    assert found["folded"]["BNN"] == {"ratio": 2.0}  # one run has it
    goal = build.benchmark_tables.goals.Goal("a", "steps", "BNN", 1.3)
    assert goal.row(found) == ["a", "**1.20** (1.00 to 1.50)", "1.30", "", ""]


def test_the_figure_shows_what_the_result_files_say(build):
    presets = build.presets_shown()
    drawn = draw_figure({data: read_results(ROOT / "results" / presets[data] / data) for data in DATA}, presets)
    assert figure_points(drawn) in (ROOT / "docs/figures/reproduction.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", TABLES, ids=str)
def test_the_command_beside_a_table_is_the_one_that_makes_it(folder, build, monkeypatch, tmp_path):
    """With all results in place, it finds nothing to train and nothing to complain of; `make results` runs it, too."""
    trained = []
    monkeypatch.setattr("kernelseed.reproduction.running._train", lambda run, *rest: trained.append(run.name))
    monkeypatch.setattr("kernelseed.cli.reproduce_command._figure", lambda *given: [])  # takes seconds
    monkeypatch.chdir(ROOT)
    for command in build.reproducing(*map(str, folder.parts)):
        ran = CliRunner().invoke(app, [*command.split()[1:], "--json", "--out", str(tmp_path)])
        assert ran.exit_code == 0, ran.output
        assert trained == []
        assert command in build.commands()


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_readmes_loop_runs_as_it_stands():
    x, y = torch.randn(32, 1, 8, 8), torch.arange(32) % 3
    model = ks.models.resnet18(3, 1, width=8, stem="small")
    loader = [(x[:16], y[:16]), (x[16:], y[16:])]
    names = {"model": model, "train_set": y, "loader": loader, "test_loader": loader}
    exec(blocks_of("README.md")[0], names)
    assert names["p"].label.shape == (32,)
    assert type(names["plain"]) is type(model)
    assert [group["lr"] for group in names["optimizer"].param_groups] == pytest.approx([1e-3, 1e-2])


def test_the_readmes_lines_on_a_run_do_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(Config(data="digits", width=8, epochs=1, samples=1), "runs/a", progress=False)
    pushed = []
    monkeypatch.setattr(ks.hub.Pretrained, "push_to_hub", lambda self, name: pushed.append((self.net, name)))
    names = {"MyModel": lambda: ks.collapse(ks.load("runs/a"))}
    exec(blocks_of("README.md")[1].replace("fashion-mnist", "digits"), names)
    assert names["p"].probs.shape == (359, 10)
    assert pushed == [(names["net"], "me/mine")]


def test_every_local_link_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


LINES = re.findall(r"^(kernelseed train .*)$", (ROOT / "docs/training.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_lines_of_the_page_on_training_are_runs_that_can_be(tmp_path, monkeypatch):
    """Each was run whole when it was written."""
    monkeypatch.chdir(tmp_path)
    for line in LINES:
        given = shlex.split(line.partition(">")[0])[1:]
        if "--resume" not in given:
            ran = CliRunner().invoke(app, [*given, "--print-config"])
            assert ran.exit_code == 0, line
            if ">" in line:
                (tmp_path / line.rpartition(" ")[2]).write_text(ran.output)
    assert len(LINES) > 10
