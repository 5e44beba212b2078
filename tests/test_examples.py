"""The examples run as they are, and say and draw what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def run(name, folder, *arguments):
    """What the example prints; it has a minute, and a folder of its own to work in."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2", "MPLCONFIGDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def number(pattern, text):
    """The one number that the pattern's group finds."""
    (found,) = re.findall(pattern, text)
    return float(found)


def test_every_example_is_run_here():
    assert EXAMPLES == [
        "corruption_grid", "k_tied_normal", "lightning_module", "plain_loop", "regression_bands", "transformers_model"
    ]  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_how_to_run_it_and_stays_short(name):
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert f"    python examples/{name}.py" in text.split('"""')[1]
    assert len(text.split('"""', 2)[2].strip().splitlines()) <= 65


def test_corruption_grid(tmp_path):
    assert "10 corruptions of digits" in run("corruption_grid", tmp_path, tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as grid:
        assert min(grid.size) > 400


def test_k_tied_normal(tmp_path):
    out = run("k_tied_normal", tmp_path)
    assert number(r"accuracy (\S+)", out) > 0.95
    assert len((ROOT / "examples" / "k_tied_normal.py").read_text().splitlines()) < 60


def test_plain_loop(tmp_path):
    out = run("plain_loop", tmp_path)
    assert len(re.findall(r"^epoch +\d+  nll \d+\.\d+  kl \d+$", out, re.M)) == 10
    assert number(r"\baccuracy (\S+)", out) > 0.93
    assert number(r" nll (\S+)  brier", out) < 0.3
    stored, plain = re.search(r"([\d,]+) parameters, the plain network has ([\d,]+)", out).groups()
    assert int(stored.replace(",", "")) < int(plain.replace(",", ""))


def test_lightning_module(tmp_path):
    out = run("lightning_module", tmp_path)
    assert number(r"10 draws: accuracy (\S+)", out) > 0.93
    assert number(r"  accuracy (\S+)", out) > 0.93
    # The warm-up is over after 200 steps: .05 N / Gaussians, which are those of two seeds and two germinators.
    gaussians = 32 * 128 + 64 * 32 + 10 * 128 + 10 * 10  # of rank 32 and, for the head, 10
    assert number(r"kl_weight (\S+)", out) == pytest.approx(0.05 * 1437 / gaussians, abs=1e-4)
    assert number(r"wrong (\S+)", out) > number(r"right (\S+),", out)


def test_transformers_model(tmp_path):
    out = run("transformers_model", tmp_path)
    assert number(r"epoch 8  nll (\S+)", out) < 0.4
    assert number(r"accuracy (\S+)", out) > 0.9
    assert number(r"mutual information (\S+)", out) > 0


def test_regression_bands(tmp_path):
    out = run("regression_bands", tmp_path, tmp_path / "figure.png")
    # A network with hidden layers, of which what can be below full rank is.
    seeds = [tuple(map(int, found)) for found in re.findall(r"weight \((\d+), (\d+)\) from a seed of rank (\d+)", out)]
    assert len(seeds) >= 3
    assert all(rank < min(rows, columns) for rows, columns, rank in seeds if min(rows, columns) > 1)
    assert any(min(rows, columns) > 1 for rows, columns, _ in seeds)
    epistemic, aleatoric = (
        {place: number(rf"{place} +.*{kind} std (\d\S+)", out) for place in ("data", "gap", "outside")}
        for kind in ("epistemic", "aleatoric")
    )
    # Sixteen seeds had 9 to 20 and 5 to 9; a posterior that collapsed (KL weight 0) has 2 and 1.3.
    assert epistemic["gap"] > 4 * epistemic["data"]
    assert epistemic["outside"] > 2.5 * epistemic["data"]
    assert epistemic["gap"] > 2 * aleatoric["gap"]
    # The noise put into the data is .15. What the mean leaves of the curve adds to it.
    assert 0.14 < aleatoric["data"] < 0.21
    assert epistemic["data"] < aleatoric["data"]
    with Image.open(tmp_path / "figure.png") as image:
        image.load()
        assert image.width >= 1000
        assert len(image.convert("RGB").getcolors(1 << 24)) > 100
    assert not (tmp_path / "bands.png").exists()
