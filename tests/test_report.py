"""The report page: what it says, what it must never do, and how a browser shows it."""

import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from run_files import run_config, run_result

import kernelseed as ks
from kernelseed import metrics
from kernelseed.core.predictive import Classification
from kernelseed.errors import ArgumentError, DataError, PathExistsError
from kernelseed.report import RunRecord, figures, read, render, write
from kernelseed.report.findings import COLUMNS, cells, sentences
from kernelseed.report.gallery import confidently_wrong, data_uri, most_uncertain
from kernelseed.report.labels import Box, label_points, spread, text_width
from kernelseed.report.svg import RUN_COLOURS_DARK, RUN_COLOURS_LIGHT, Scale, look, scale_for
from kernelseed.training import Config, RunFolder

SECTIONS = ("table", "size", "reliability", "confidence", "risk", "shift", "ood", "images", "curves", "configs")
HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>'


def ood_set(name: str) -> dict:
    measured = {"auroc": 0.75, "aupr": 0.5, "fpr_at_95_tpr": 0.25}
    scores = {way: {"entropy": measured, "energy": measured} for way in ("mean", "ensemble")}
    return {"name": name, "images": 10, "converted": "3 x 9 x 9 to 1 x 8 x 8: shrunk", "scores": scores}


def shift_found(worse: float = 0.0) -> dict:
    """Two corruptions, of which the second does more harm."""
    falls = {
        name: {
            "accuracy": [0.9 - worse / 4 - harm * severity for severity in range(6)],
            "nll": [0.3 + worse + 4 * harm * severity for severity in range(6)],
            "ece": [0.02 + harm * severity for severity in range(6)],
        }
        for name, harm in (("blur", 0.02), ("gaussian-noise", 0.1))
    }
    return {"images": 1234, "curves": {"mean": falls, "ensemble": falls}}


def make_run(slot: int = 0, count: int = 1000, **changes: object) -> RunRecord:
    """A network that finds some examples harder than others; the higher the slot, the surer it is."""
    shared, own = np.random.default_rng(0), np.random.default_rng(slot + 1)
    labels = shared.integers(10, size=count)
    logits = shared.normal(size=(count, 10)) + 0.5 * own.normal(size=(count, 10))
    logits[np.arange(count), labels] += shared.gamma(3.0, 1.5, size=count)
    probs = torch.tensor(logits * (0.8 + 0.2 * slot)).softmax(1).numpy()
    entropy = -(probs * np.log(probs)).sum(1)
    epochs = list(range(1, 21))
    values: dict = {
        "name": f"2026-03-01-run-{slot}",
        "method": "ksn",
        "label": f"KSN-E δ={0.25 * (slot + 1)}",
        "parameters": 120_000 * (slot + 1),
        "plain_parameters": 431_080,
        "metrics": metrics.summary(torch.from_numpy(probs), torch.from_numpy(labels)),
        "probs": probs,
        "labels": labels,
        "entropy": entropy,
        "mutual_information": 0.3 * entropy,
        "curves": {"train_loss": (epochs, [2.0 / epoch for epoch in epochs])},
        "config": {"data": "digits", "optimizer": {"name": "adam", "lr": 0.001}},
        "result": {"seconds": 100.0 + slot, "seed": slot, "versions": {"torch": "2.13"}},
        "class_names": [f"digit {i}" for i in range(10)],
        "images": shared.integers(256, size=(count, 1, 8, 8), dtype=np.uint8).repeat(2, 2).repeat(2, 3),
        "way": "ensemble",
        "found": {"ood": {"sets": [ood_set("letters")]}, "shift": shift_found(0.1 * slot)},
        "ood_entropy": {"letters": own.uniform(0.5, 2.3, size=count)},
    }
    return RunRecord(**values | changes)


@pytest.fixture(scope="module")
def runs() -> list[RunRecord]:
    return [make_run(slot) for slot in range(3)]


@pytest.fixture(scope="module")
def page(runs: list[RunRecord]) -> str:
    return render(runs)


def column(title: str):
    return next(column for column in COLUMNS if column.metric.title == title)


def test_every_section_is_there(page, runs):
    for section in SECTIONS:
        assert f'id="{section}"' in page
        assert f'href="#{section}"' in page
    for run in runs:
        assert page.count(run.label) > 8  # table, figures, galleries, config
    assert "AUROC 0." in page
    assert "data:image/png;base64," in page
    assert "&#34;lr&#34;: 0.001" in page
    assert "&#34;torch&#34;: &#34;2.13&#34;" in page


def test_shift_is_shown_as_means_over_corruptions_and_for_each():
    page = render([make_run(0, 50), make_run(1, 50, found={}), make_run(2, 50)])
    section = page[page.index('<section id="shift">') : page.index('<section id="ood">')]
    assert "Test images (1,234) are damaged in 2 ways" in section
    rows = re.findall(r'<th scope="row">.*?</tr>', section, re.DOTALL)
    assert len(rows) == 2  # the second run does not hold it
    cells = [re.findall(r"<td[^>]*>([\d.]+)", row) for row in rows]
    # 0.9 - 0.06 severity is the mean of both; NLL 0.3 + 0.24 severity, ECE 0.02 + 0.06 severity
    assert cells[0] == ["0.9000", "0.7200", "0.6000", "0.3000", "1.0200", "1.5000", "0.0200", "0.2000", "0.3200"]
    assert cells[1][3:6] == ["0.5000", "1.2200", "1.7000"]
    assert section.count("<polygon") == 2 * 3  # a band for each run and metric
    assert "gaussian-noise" in section


def test_one_colour_per_run_in_every_figure(page, runs):
    for slot in range(len(runs)):
        assert page.count(look(slot).colour) > 20


def test_best_values_are_marked_with_their_ties():
    accuracies = [0.91, 0.95001, 0.95004]
    runs = [make_run(i, 50, metrics={"accuracy": a, "nll": 0.2 + i}, found={}) for i, a in enumerate(accuracies)]
    assert [cell.best for cell in cells(runs, column("ACC"))] == [False, True, True]  # both read 0.9500
    assert [cell.best for cell in cells(runs, column("NLL"))] == [True, False, False]
    assert [cell.text for cell in cells(runs, column("ECE"))] == ["–"] * 3  # not measured
    assert not any(cell.best for cell in cells(runs, column("ECE")))
    assert not cells(runs[:1], column("ACC"))[0].best  # best of one says nothing
    marked = re.findall(r'<td class="best">([\d.]+)<span', render(runs))
    assert marked.count("0.9500") == 2
    assert marked.count("0.2000") == 1
    unknown = [make_run(i, 50, metrics={"accuracy": a}) for i, a in enumerate([float("nan"), 0.9, 0.8])]
    assert [(cell.text, cell.best) for cell in cells(unknown, column("ACC"))] == [
        ("–", False), ("0.9000", True), ("0.8000", False)
    ]  # fmt: skip


def test_every_metric_is_one_that_is_measured():
    assert metrics.METRICS.keys() <= make_run(count=50).metrics.keys()
    accuracy, nll = metrics.METRICS["accuracy"], metrics.METRICS["nll"]
    assert (accuracy.heading, nll.heading) == ("ACC ↑", "NLL ↓")
    assert accuracy.gain(0.9, 0.8) > 0 > nll.gain(0.9, 0.8)
    assert nll.best([math.nan]) is None


def test_headline_claims_only_what_the_test_set_can_tell():
    good = make_run(0)
    # one example more is wrong: no difference to speak of
    probs = good.probs.copy()
    i = np.flatnonzero(good.correct)[0]
    probs[i] = np.roll(probs[i], 1)
    close = replace(
        good,
        label="close",
        probs=probs,
        metrics=good.metrics | {"accuracy": good.metrics["accuracy"] - 0.001},
    )
    far = replace(good, probs=np.roll(good.probs, 1, axis=1), metrics=good.metrics | {"accuracy": 0.1})
    said = sentences([good, close, far], ["good", "close", "far"])[0]
    assert said.startswith("good has the highest accuracy")
    assert "cannot tell it from close" in said
    assert "far" not in said
    assert "more than this test set's sampling error" in sentences([good, far], ["good", "far"])[0]
    other_data = replace(good, labels=np.roll(good.labels, 1))
    assert "not judged on the same test examples" in sentences([good, other_data], ["a", "b"])[0]


def test_hostile_text_is_harmless():
    run = make_run(
        0, 50, name=HOSTILE, label=HOSTILE, method=HOSTILE, class_names=[HOSTILE] * 10,
        found={"ood": {"sets": [ood_set(HOSTILE)]}}, ood_entropy={HOSTILE: np.ones(3)},
        config={"data": HOSTILE, HOSTILE: HOSTILE}, result={HOSTILE: HOSTILE},
        curves={HOSTILE: ([1, 2], [1, 2])},
    )  # fmt: skip
    page = render([run, make_run(1, 50)], title=HOSTILE)
    assert "<script" not in page.lower()
    assert not re.search(r"<[^>]*\sonerror=", re.sub(r'"[^"]*"', '""', page))
    assert html.escape("<script>", quote=False) in page


def test_nothing_is_fetched(page):
    assert not re.search(r"https?://", page.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    assert set(re.findall(r'src="([^"]{5})', page)) == {"data:"}
    assert not re.search(r"@import|url\(|<link|<script|<iframe", page)
    assert "default-src 'none'" in page  # and the browser is told so


def test_works_with_little():
    bare = make_run(
        0,
        40,
        images=None,
        found={},
        ood_entropy={},
        curves={},
        mutual_information=None,
        class_names=[],
        config={},
    )
    page = render([bare])
    for said in ("no test images", "no training curves", "95% interval"):
        assert said in page
    assert not re.search("#(ood|shift)", page)  # no run holds them
    mixed = render([bare, make_run(1, 40)])
    assert mixed.count("AUROC 0.") == 1
    assert "no test images" not in mixed
    with pytest.raises(ArgumentError, match=r"runs is empty; .* give at least one RunRecord"):
        render([])


def test_perfect_and_hopeless_runs_can_be_drawn():
    labels = np.arange(20) % 10
    for truth in (labels, (labels + 1) % 10):
        probs = np.eye(10)[labels]
        run = make_run(0, 20, probs=probs, labels=truth, entropy=np.zeros(20), ood_entropy={"letters": np.zeros(5)})
        assert "NaN" not in render([run])
        assert ">nan" not in render([run])


def test_arrays_may_be_read_only():
    run = make_run(0, 50)
    for array in (run.probs, run.labels, run.entropy, run.images, *run.ood_entropy.values()):
        array.flags.writeable = False  # as from a memory map
    assert "AUROC 0." in render([run])


def test_runs_that_share_a_label_are_told_apart():
    page = render([make_run(0, 50, label="same", name="first"), make_run(1, 50, label="same", name="second")])
    assert "same (first)" in page
    assert "same (second)" in page


def test_a_run_that_predicts_in_two_ways_was_trained_once():
    page = render([make_run(0, 50, label="draws"), make_run(0, 50, label="mean"), make_run(1, 50)])
    assert "Two runs with three ways of predicting" in page
    curves = page[page.index('<section id="curves">') : page.index('<section id="configs">')]
    assert "draws" in curves
    assert "mean" not in curves


def test_size_stays_moderate():
    big = [make_run(slot, 10_000) for slot in range(6)]
    assert len(render(big).encode()) < 2_000_000


def test_write_is_whole_or_nothing_and_never_overwrites(tmp_path, runs):
    path = tmp_path / "report.html"
    assert write(runs, path) == path
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    before = path.read_bytes()
    with pytest.raises(PathExistsError, match=r"report\.html.*overwrite=True"):
        write(runs[:1], path)
    assert path.read_bytes() == before
    write(runs[:1], path, overwrite=True)
    assert path.read_bytes() != before


def test_a_run_folder_gives_a_record_for_each_way_of_predicting(tmp_path, monkeypatch):
    """Out-of-distribution data is shown where the last evaluation has it; images where their data is at hand."""

    def no_data(*given):
        raise DataError("digits are not here.")

    inside, outside = (Classification.from_draws(torch.rand(2, count, 3).softmax(2)) for count in (4, 5))
    monkeypatch.setattr(Config, "load_data", no_data)
    monkeypatch.setattr(
        RunFolder,
        "prediction",
        lambda run, part, way: (outside if part == "ood-0" else inside, torch.arange(4) % 3),
    )
    monkeypatch.setattr(RunFolder, "has_prediction", lambda run, part, way: way == "mean")
    for folder in ("a/seed-0", "b/seed-0"):
        run = RunFolder.create(tmp_path / folder, run_config(Config(), ["x", "y", "z"]))
        half = dict.fromkeys(metrics.METRICS, 0.5)
        run.write_result(run_result(metrics={"mean": {**half, "nll": 1.0}, "ensemble": half}))
        run.write_found("ood", {"labels": {}, "sets": [ood_set("letters")]})
        run.write_metrics([{"epoch": 1, "loss": 3.0, "seconds": 9.0}])
    with pytest.warns(UserWarning, match="no images in the report: digits are not here"):
        ensemble, mean, *_ = found = read([tmp_path / "a/seed-0", tmp_path / "b/seed-0"])
    assert [(run.name, run.label) for run in found] == [
        ("a/seed-0", "E"), ("a/seed-0", "P"), ("b/seed-0", "E"), ("b/seed-0", "P")
    ]  # fmt: skip
    assert (ensemble.images, ensemble.curves, ensemble.class_names) == (None, {"loss": ([1], [3])}, ["x", "y", "z"])
    assert [run.way for run in found] == ["ensemble", "mean"] * 2
    assert mean.found == {"ood": {"labels": {}, "sets": [ood_set("letters")]}}
    assert (ensemble.ood_entropy, len(mean.ood_entropy["letters"]), mean.mutual_information) == ({}, 5, None)
    assert (ensemble.metrics["nll"], mean.metrics["nll"], mean.relative_size) == (0.5, 1.0, 0.5)


def test_images_are_chosen_for_what_they_claim():
    run = make_run(0, 200)
    for tile, i in zip(most_uncertain(run, 3), np.argsort(-run.entropy)[:3], strict=True):
        assert f"test example {i}:" in tile.tooltip
    tiles = confidently_wrong(run)
    assert tiles
    assert not any(tile.right for tile in tiles)
    sure = run.confidence[~run.correct].max()
    assert tiles[0].confidence == f"{sure:.1%}"


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_large_images_are_scaled_down(channels):
    uri = data_uri(np.random.default_rng(0).integers(256, size=(channels, 224, 300), dtype=np.uint8))
    assert uri.startswith("data:image/png;base64,")
    assert len(uri) < 20_000


def test_labels_of_twelve_points_do_not_meet():
    frame = Box(58, 30, 450, 270)
    random = np.random.default_rng(0)
    for width in (0.0, 5.0, 40.0):
        cloud = random.normal((250, 150), width, (12, 2))
        points = [(float(x), float(y)) for x, y in np.clip(cloud, (70, 40), (440, 260))]
        labels = [f"KSN-E δ=0.{i:02d} long" for i in range(12)]
        boxes = label_points(labels, points, frame)
        assert not any(a.meets(b) for a, b in combinations(boxes, 2))
        assert all(box.inside(frame) for box in boxes)
        for box, label in zip(boxes, labels, strict=True):
            assert box.right - box.left == pytest.approx(text_width(label))


def test_spread_keeps_order_and_bounds():
    moved = spread([100, 100, 101, 99, 300], 0, 310)
    assert np.argsort(moved).tolist() == [3, 0, 1, 2, 4]
    assert np.diff(sorted(moved)).min() > 14
    assert min(moved) >= 0
    assert max(moved) <= 310


def test_ticks_are_round_and_inside():
    assert Scale(0, 1, 0, 100).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert scale_for([0.1234, 0.1239], 0, 100).ticks()  # a narrow range has ticks too
    assert scale_for([5.0], 0, 100)(5.0) == 50  # and so has a single value
    assert scale_for([1, 1000], 0, 100, log=True, pad=0)(10) == pytest.approx(100 / 3)


def test_wilson_agrees_with_the_textbook():
    assert figures.wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert figures.wilson(1.0, 10)[0] == pytest.approx(0.7225, abs=1e-4)


@pytest.mark.parametrize(
    ("paper", "colours"),
    [("#fcfbf8", RUN_COLOURS_LIGHT), ("#15181c", RUN_COLOURS_DARK)],
)
def test_run_colours_stand_out_from_the_paper(paper, colours):
    def luminance(colour: str) -> float:
        channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    for colour in colours:
        dark, bright = sorted((luminance(colour), luminance(paper)))
        assert (bright + 0.05) / (dark + 0.05) >= 3  # WCAG's bound for graphics


# ------------------------------------------------------------------------------------------- in a browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")

# Loads the page in frames of three widths, the last with the print rules on the screen, and measures it.
MEASURE = """<!DOCTYPE html><body><script>
const page = PAGE;
const frame = (width, content) => new Promise(done => {
  const it = document.createElement("iframe");
  it.style.cssText = `width:${width}px;height:900px;border:0`;
  it.onload = () => done(it.contentDocument);
  it.srcdoc = content;
  document.body.append(it);
});
const overflow = d => d.documentElement.scrollWidth - d.documentElement.clientWidth;
const overlaps = d => [...d.querySelectorAll("#size svg")].reduce((sum, svg) => {
  const boxes = [...svg.querySelectorAll(".point-label")].map(t => t.getBBox());
  const meet = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width
    && a.y + 1 < b.y + b.height && b.y + 1 < a.y + a.height;
  return sum + boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => meet(a, b))).length;
}, 0);
const clipped = d => [...d.querySelectorAll("figure svg text")].filter(t => {
  const box = t.getBBox(), view = t.ownerSVGElement.viewBox.baseVal;
  return box.x < -0.5 || box.x + box.width > view.width + 0.5;
}).map(t => t.textContent);
(async () => {
  const phone = await frame(400, page), wide = await frame(1200, page);
  const paper = await frame(700, page.replaceAll("@media print", "@media all"));
  const unfolded = d => d.querySelector("details pre").checkVisibility();
  const measured = {
    overflow: [phone, wide, paper].map(overflow), overlaps: [phone, wide].map(overlaps),
    clipped: clipped(wide), unfolded: [wide, paper].map(unfolded),
    sections: wide.querySelectorAll("section").length,
  };
  document.body.innerHTML = "<pre></pre>";
  document.querySelector("pre").textContent = JSON.stringify(measured);
})();
</script></body>"""


def chromium(folder: Path, *arguments: str) -> tuple[str, str]:
    """What the browser writes to its output and to its log, from a profile of its own."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command = [CHROMIUM, *flags, f"--user-data-dir={folder / 'profile'}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def browsed(tmp_path_factory) -> dict:
    """Everything the browser has to say about a page of twelve runs."""
    folder = tmp_path_factory.mktemp("browser")
    names = ["KSN-E δ=0.25", "MC dropout p=0.1", "W" * 40, "x" * 60]
    twelve = [make_run(i, 300, label=names[i] if i < len(names) else f"BNN number {i}") for i in range(12)]
    path = write(twelve, folder / "report.html")
    written = json.dumps(path.read_text("utf-8")).replace("</", "<\\/")
    measure = folder / "measure.html"
    measure.write_text('<meta charset="utf-8">' + MEASURE.replace("PAGE", written, 1), "utf-8")
    shot = ("--window-size=1200,1000", path.as_uri())
    dark = "--blink-settings=preferredColorScheme=0"
    dom, *logs = chromium(folder, "--dump-dom", "--virtual-time-budget=5000", measure.as_uri())
    logs.append(chromium(folder, f"--screenshot={folder / 'light.png'}", *shot)[1])
    logs.append(chromium(folder, f"--screenshot={folder / 'dark.png'}", dark, *shot)[1])
    logs.append(chromium(folder, f"--print-to-pdf={folder / 'report.pdf'}", path.as_uri())[1])
    measured = re.search("<pre>(.*)</pre>", dom, re.DOTALL)
    assert measured, logs[0]
    return {
        "folder": folder,
        "console": [line for log in logs for line in log.splitlines() if "CONSOLE" in line],
        **json.loads(html.unescape(measured[1])),
    }


@in_browser
def test_browser_has_nothing_to_complain_about(browsed):
    assert browsed["console"] == []
    assert browsed["sections"] == len(SECTIONS)


@in_browser
def test_nothing_overflows_and_no_label_hides_another(browsed):
    assert browsed["overflow"] == [0, 0, 0]  # a phone, a desk, a sheet of A4
    assert browsed["overlaps"] == [0, 0]
    assert browsed["clipped"] == []


@in_browser
def test_configs_are_folded_on_screen_and_open_on_paper(browsed):
    assert browsed["unfolded"] == [False, True]
    pdf = (browsed["folder"] / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000


@in_browser
@pytest.mark.parametrize(("theme", "bright"), [("light", True), ("dark", False)])
def test_screenshot_follows_the_theme(browsed, theme, bright):
    with Image.open(browsed["folder"] / f"{theme}.png") as shot:
        pixels = np.asarray(shot.convert("L"), float)
    assert (np.median(pixels) > 128) == bright
    assert pixels.std() > 10  # not blank


def test_a_run_that_held_data_out_shows_what_it_promises():
    run = make_run()
    held_out = make_run(count=2000)
    page = render([replace(run, validation=(held_out.probs, held_out.labels)), make_run(1)])
    rule = ks.abstention(classified(held_out.probs), torch.tensor(held_out.labels), 0.05)
    keep = run.confidence > rule.threshold
    assert f"<td>{(~run.correct[keep]).mean():.2%} of {keep.mean():.0%}</td>" in page
    sets = ks.conformal(classified(held_out.probs), torch.tensor(held_out.labels), 0.9)(classified(run.probs)).numpy()
    held = sets[np.arange(len(sets)), run.labels]
    assert f"<td>{held.mean():.1%}</td>" in page
    assert f"<td>{sets.sum(1).mean():.2f}</td>" in page
    few = render([replace(run, validation=(held_out.probs[:60], held_out.labels[:60]))])
    assert "too few examples" in few
    assert "Sets that hold" not in render([run])
    assert "Thresholds that keep" not in render([run])


def classified(probs):
    return ks.Classification.from_draws(torch.tensor(probs)[None])
