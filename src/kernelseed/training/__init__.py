"""Training, evaluation and run folders: what the command line does, for use from Python.

    from kernelseed.training import Config, evaluate, train
    train(Config(data="digits", method="ksn", width=16, epochs=12), out="runs/a")
    evaluate("runs/a", samples=30)

Config                                what a run is
recipe, RECIPES                       settings under a name: ours, or the paper's
overlay, differences, read_settings   settings from several places: which win, and which are not the same
train, LOGGERS                        from a config to a finished run folder; where its curves can go
RunFolder, read_result                the files of a run
evaluate, predict_files, describe_run what to do with a finished run
pruning_curve, PruningCurve, prune_run    what is left of it when weights or channels are removed
predict_split, averages, summarise, provenance   the parts of a result
shift_curves, average_curve           accuracy, NLL and ECE of a network on damaged images
"""

from typing import TYPE_CHECKING, Any

from kernelseed.errors import MissingPackageError
from kernelseed.training.config import Config
from kernelseed.training.courses import RECIPES, recipe
from kernelseed.training.evaluation import evaluate
from kernelseed.training.inference import averages, predict_split
from kernelseed.training.inspection import describe_run
from kernelseed.training.loggers import LOGGERS
from kernelseed.training.merged_settings import differences, overlay, read_settings
from kernelseed.training.origin import provenance
from kernelseed.training.predicted_files import predict_files
from kernelseed.training.pruned_runs import prune_run
from kernelseed.training.pruning_curves import PruningCurve, pruning_curve
from kernelseed.training.run_folder import RunFolder, read_result, write_csv
from kernelseed.training.shift import MEASURED, average_curve, shift_curves
from kernelseed.training.tasks import summarise

if TYPE_CHECKING:
    from kernelseed.training.trainer import train

__all__ = [
    "LOGGERS",
    "MEASURED",
    "RECIPES",
    "Config",
    "PruningCurve",
    "RunFolder",
    "average_curve",
    "averages",
    "describe_run",
    "differences",
    "evaluate",
    "overlay",
    "predict_files",
    "predict_split",
    "provenance",
    "prune_run",
    "pruning_curve",
    "read_result",
    "read_settings",
    "recipe",
    "shift_curves",
    "summarise",
    "train",
    "write_csv",
]


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import, and reading a run does not need it.
    if name != "train":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from kernelseed.training.trainer import train
    except ModuleNotFoundError as error:
        if str(error.name).startswith("kernelseed"):
            raise
        raise MissingPackageError(
            f'training needs the package {error.name!r}: pip install "kernelseed[train]".', name=error.name
        ) from None
    return train
