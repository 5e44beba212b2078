"""Evaluation of a finished run: its metrics again, with a temperature, or against other data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kernelseed.data import Dataset
from kernelseed.errors import ConfigError
from kernelseed.metrics import TemperatureScaling
from kernelseed.models import Model
from kernelseed.training.config import Config
from kernelseed.training.elsewhere import against, check_fit, load_elsewhere
from kernelseed.training.inference import predict_split, require_validation, ways
from kernelseed.training.origin import provenance
from kernelseed.training.run_folder import RunFolder
from kernelseed.training.shift import under_shift, wanted_damages
from kernelseed.training.tasks import stored_task, summarise


def evaluate(
    run: str | Path,
    samples: int | None = None,
    update_bn: int | None = None,
    temperature: bool = False,
    ood: str | Sequence[str] | None = None,
    data_dir: str | Path | None = None,
    *,
    model: Model | None = None,
    trust_model: bool = False,
    data: Dataset | None = None,
    shift: str | Sequence[str] | None = None,
    shift_images: int | None = None,
    ood_fit: str = "resize",
) -> dict[str, Any]:
    """Test a run again, and keep what was found in its folder; the run's own result stays.

    What was found of other data sets and corruptions stays too, if it was found in the same setting; else a warning
    says that it is replaced.

    samples, update_bn   other than the run's, see `Config`
    temperature          scale by a temperature that is fitted on the validation split
    ood                  data sets, by name, to tell from the test set by their scores: see `ks.outlier_scores`
    ood_fit              how their images get the network's size: "resize", "pad", or "refuse"
    shift                corruptions of the test images, by name, or "all": accuracy, NLL and ECE at each severity
    shift_images         so many test images, chosen by the seed, instead of all
    model, trust_model   a model of your own again, or its name trusted: see `ks.load`
    data                 again, if the run's was given in Python
    """
    folder = RunFolder(run)
    config = _other_settings(folder, samples=samples, update_bn=update_bn)
    described = folder.config()["data"]
    _require_kind(folder, described, temperature, shift=shift, ood=ood)
    check_fit(ood_fit, ood)
    damages = wanted_damages(shift, shift_images)
    if temperature:
        require_validation(folder, config, "fit a temperature on")
    net = folder.network(model, trust_model)
    data = folder.data(data, data_dir)
    outside = load_elsewhere(ood, data, ood_fit, data_dir) if ood is not None else []
    tested = {way: Tested.of(net, data, config, way, temperature) for way in ways(config)}
    found = {"metrics": {way: each.metrics for way, each in tested.items()}}
    about = _about(folder, config, {way: each.scaling.temperature for way, each in tested.items() if each.scaling})
    folder.write_evaluation(found | about)
    parts = {}
    if outside:
        inside = {way: each.prediction for way, each in tested.items()}
        before = folder.found_before("ood", {"settings": about["settings"], "images": len(data.test)})
        parts["ood"] = against(outside, net, inside, data, config, folder, before)
        folder.write_found("ood", about | parts["ood"])
    if damages:
        scales = {way: each.scale for way, each in tested.items()}
        count = min(shift_images or len(data.test), len(data.test))
        before = folder.found_before("shift", {"settings": about["settings"], "images": count})
        parts["shift"] = under_shift(damages, count, net, scales, data, config, before)
        folder.write_found("shift", about | parts["shift"])
    return found | about | parts


@dataclass(frozen=True)
class Tested:
    """What one way of predicting says of the test set."""

    prediction: Any
    """Without a temperature."""
    metrics: dict[str, float]
    scaling: TemperatureScaling | None

    @classmethod
    def of(cls, net: nn.Module, data: Dataset, config: Config, way: str, temperature: bool) -> Tested:
        """With a temperature that is fitted on the validation split, if it is asked for."""
        prediction = predict_split(net, data.test, data, config, way)
        found = summarise(prediction, data.test.targets)
        if not (temperature and data.validation):
            return cls(prediction, found, None)
        held_out = predict_split(net, data.validation, data, config, way)
        scaling = TemperatureScaling.fit(held_out.probs, data.validation.labels)
        scaled = summarise(replace(prediction, probs=scaling.apply(prediction.probs)), data.test.targets)
        del scaled["mutual_information"]  # how far the draws disagree, which have no temperature
        return cls(prediction, found | scaled, scaling)

    def scale(self, probs: Tensor) -> Tensor:
        """Probabilities with the temperature, if there is one."""
        return probs if self.scaling is None else self.scaling.apply(probs)


def _other_settings(folder: RunFolder, **others: int | None) -> Config:
    """The config of a finished run, with those settings replaced that are given."""
    folder.result()  # an error if there is none yet
    given: dict[str, Any] = {key: value for key, value in others.items() if value is not None}
    return replace(folder.training_config(), **given)


def _about(folder: RunFolder, config: Config, temperatures: dict[str, float]) -> dict[str, Any]:
    """What was tested, how and by what: beside everything that is found."""
    result = folder.result()
    tested = {"samples": config.samples, "update_bn": config.update_bn, "seed": config.seed}
    return {
        "settings": {**tested, "temperature": temperatures},
        **{key: result[key] for key in ("labels", "parameters", "seed", "config")},
        "trained": folder.trained(),
        **provenance(),
    }


def _require_kind(
    folder: RunFolder, described: dict[str, Any], temperature: bool, **of_images: str | Sequence[str] | None
) -> None:
    """An error if what is asked for needs classes or images, and the run has none."""
    stored_task(described, folder.path).require_classes("temperature", temperature)
    for name, value in of_images.items():
        if value is not None and "table" in described:
            raise ConfigError(f"{name} is {value!r}, but the run's data is a table, not images: leave it out.")
