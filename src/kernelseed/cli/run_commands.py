"""What to do with runs: kernelseed evaluate, predict, report and info."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

from kernelseed import data, metrics
from kernelseed import predict as ks_predict
from kernelseed.cli.data_commands import DataDir
from kernelseed.cli.show import comparison, console, megas, narrow_table, print_json, say
from kernelseed.core.files import StorageError, write_json, write_text
from kernelseed.core.network import BayesianModule
from kernelseed.core.storage import load
from kernelseed.core.weights import WeightDistribution
from kernelseed.metrics import calibration
from kernelseed.report.page import write as write_page
from kernelseed.report.reading import read as read_runs
from kernelseed.training import Config, RunFolder
from kernelseed.training.evaluation import (
    like,
    predict_split,
    read_prediction,
    statistics_batches,
    summarise,
    summarise_shift,
    write_prediction,
)
from kernelseed.training.origin import provenance

Run = Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def evaluate(
    run: Run,
    samples: Annotated[int | None, typer.Option(help="Draws to average; 0: the mean. Default: the run's.")] = None,
    update_bn: Annotated[
        bool | None, typer.Option(help="BatchNorm statistics for each draw, from training images.")
    ] = None,
    temperature: Annotated[bool, typer.Option(help="Scale by a temperature fitted on the validation share.")] = False,
    ood: Annotated[str | None, typer.Option(help="A foreign data set to tell apart by entropy.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Test a run again: with other draws, other BatchNorm care, a temperature, or on foreign images."""
    folder = RunFolder(run)
    result, config = folder.result(), folder.training_config()
    net, dataset = load(run), config.load_data(data_dir)
    images = {None: config.update_bn, True: config.update_bn or 4096, False: 0}[update_bn]
    options: dict[str, Any] = {"update_bn": images, "seed": config.seed}
    samples = config.samples if samples is None else samples
    ways = {"ensemble": samples, "mean": 0} if samples and config.build_method().random else {"mean": 0}
    found: dict[str, Any] = {
        "settings": {"samples": samples, **options, "temperature": {}},
        "metrics": {},
        **{key: result[key] for key in ("labels", "parameters", "seed", "config")},
        "trained": folder.trained(),
        **provenance(),
    }
    for way, number in ways.items():
        inside = predict_split(net, dataset.test, dataset, samples=number, **options)
        probs = inside.probs
        if temperature:
            if dataset.validation is None:
                raise StorageError(f"{run} held out no data to fit a temperature on; train it with --validation 0.1.")
            held_out = predict_split(net, dataset.validation, dataset, samples=number, **options)
            scaling = calibration.TemperatureScaling.fit(held_out.probs, dataset.validation.labels)
            found["settings"]["temperature"][way] = scaling.temperature
            probs = scaling.apply(probs)
        found["metrics"][way] = summarise(inside, dataset.test.labels) | metrics.summary(probs, dataset.test.labels)
        if ood:
            foreign = data.load_test(ood, data_dir)
            foreign = data.Split(like(foreign.images, dataset.test.images), foreign.labels)
            outside = predict_split(net, foreign, dataset, samples=number, **options)
            found.setdefault("ood", {"name": ood})[way] = summarise_shift(inside, outside)
            write_prediction(outside, foreign.labels, run / f"ood-{way}.safetensors")
    write_json(run / "evaluation.json", found)
    if json:
        return print_json(found)
    console.print(comparison([result | {"metrics": found["metrics"]}], escape(f"{config.data}: {run}")))
    for way in ways if ood else ():
        shift = found["ood"][way]
        console.print(
            f"{result['labels'][way]} against {escape(str(ood))}: AUROC {shift['auroc_entropy']:.4f} by entropy, "
            f"{shift['auroc_mutual_information']:.4f} by mutual information"
        )


def predict(
    run: Run,
    images: Annotated[list[Path], typer.Argument(help="Pictures.", metavar="IMAGES...")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A CSV file to write; default: print.")] = None,
    samples: Annotated[int | None, typer.Option(help="Draws to average; default: the run's.")] = None,
    risk: Annotated[float, typer.Option(help="Abstain so that at most this share of answers is wrong.")] = 0.05,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Classify pictures: label, confidence, entropy, mutual information, and whether to abstain.

    The threshold for abstaining is the one that kept the error rate of the run's test set at the risk. Each draw gets
    its BatchNorm statistics from the run's training data, as in its test; where those are not at hand, it says so.
    """
    if out is not None and out.exists():
        raise FileExistsError(f"{out} exists; choose another name, or remove it first.")
    folder = RunFolder(run)
    config, described = folder.training_config(), folder.config()["data"]
    channels, *size = described["image"]
    pictures = data.read_pictures(images, size=tuple(size), channels=channels)
    x = data.normalise(pictures, described["mean"], described["std"])
    samples = config.samples if samples is None else samples
    p = ks_predict(load(run), x, samples, update_bn=_statistics(config, data_dir), seed=config.seed)
    threshold = _threshold(folder, risk, samples)
    rows = [
        {
            "file": str(path), "label": described["classes"][label], "confidence": round(confidence, 6),
            "entropy": round(entropy, 6), "mutual_information": round(information, 6),
            "abstain": confidence < threshold,
        }
        for path, label, confidence, entropy, information in zip(
            images, p.label.tolist(), p.confidence.tolist(), p.entropy.tolist(), p.mutual_information.tolist(),
            strict=True,
        )
    ]  # fmt: skip
    if json:
        return print_json({"threshold": threshold, "risk": risk, "predictions": rows})
    if out is None:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*map(str, row.values()))
        return console.print(table)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(out, text.getvalue())
    say(f"{len(rows)} predictions in {escape(str(out))}; abstained from {sum(row['abstain'] for row in rows)}")


def _statistics(config: Config, data_dir: Path | None) -> data.Batches | None:
    """Training images for BatchNorm, if the run was tested with them and they are here."""
    if not config.update_bn:
        return None
    try:
        return statistics_batches(config.load_data(data_dir), config.update_bn, config.seed)
    except data.DataError as error:
        say(f"[yellow]no BatchNorm statistics for each draw:[/] {escape(str(error))}")
        return None


def _threshold(folder: RunFolder, risk: float, samples: int) -> float:
    """The confidence below which to abstain, from the run's own test predictions."""
    for way in ("ensemble", "mean") if samples else ("mean",):
        path = folder.path / f"test-{way}.safetensors"
        if path.exists():
            prediction, labels = read_prediction(path)
            return metrics.threshold_at_risk(prediction.confidence, prediction.label == labels, risk)
    raise StorageError(f"{folder.path} has no test predictions; the run is not finished: continue it with --resume.")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a page that is there.")] = False,
    data_dir: DataDir = None,
) -> None:
    """One self-contained HTML page that compares runs."""
    page = write_report(runs, out, data_dir, overwrite)
    console.print(f"Report: [bold]{escape(str(page))}[/]", soft_wrap=True)


def write_report(runs: list[Path], out: Path, data_dir: Path | None = None, overwrite: bool = False) -> Path:
    """The page for these runs; returns its path."""
    write_page(read_runs(runs, data_dir), out, overwrite=overwrite)
    return out


def info(run: Run, json: Json = False) -> None:
    """What a run's network stores: seeds, germinators and parameters, against the plain network."""
    folder, net = RunFolder(run), load(run)
    described = folder.config()["network"]
    layers = [_layer(name, weight) for name, weight in net.weights.items()] if isinstance(net, BayesianModule) else []
    counts = folder.result()["parameters"] if folder.finished else {}
    if json:
        return print_json({"run": str(run), "parameters": counts, "layers": layers})
    if layers:
        table = narrow_table(["Weight", "Shape", "Kind"], ["Rank", "Params", "RS", "mean σ"])
        for layer in layers:
            table.add_row(
                layer["weight"], "×".join(map(str, layer["shape"])), layer["distribution"], str(layer["rank"] or ""),
                f"{layer['parameters']:,}", f"{layer['parameters'] / layer['weights']:.2f}",
                "" if layer["sigma"] is None else f"{layer['sigma']:.4f}",
            )  # fmt: skip
        console.print(table)
    stored = sum(p.numel() for p in net.parameters())
    plain = f", {stored / counts['plain']:.2f} of the plain network's {megas(counts['plain'])}" if counts else ""
    console.print(f"{described['kind']} network: {stored:,} parameters{plain}")


@torch.no_grad()
def _layer(name: str, weight: WeightDistribution) -> dict[str, Any]:
    std = weight.moments().std
    return {
        "weight": name,
        "shape": list(weight.shape),
        "distribution": type(weight).__name__,
        "rank": weight.rank,
        "parameters": sum(p.numel() for p in weight.parameters()),
        "weights": weight.num_weights,
        "sigma": None if std is None else std.mean().item(),
    }
