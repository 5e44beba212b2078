"""The files of runs that were never trained, with all that the schema asks for."""

from kernelseed.metrics import METRICS
from kernelseed.training import Config


def run_config(config, classes=("x", "y", "z")):
    """What config.json holds."""
    data = {"name": config.data, "classes": list(classes), "image": [1, 8, 8], "mean": [0.5], "std": [0.2]}
    return {"network": {"kind": "plain"}, "training": config.as_json(), "data": data}


def run_result(config=None, **changes):
    """What result.json holds."""
    config = config or Config()
    return {
        "metrics": {way: dict.fromkeys(METRICS, 0.5) for way in ("mean", "ensemble")},
        "parameters": {"trained": 2, "stored": 2, "plain": 4, "relative": 0.5},
        "labels": {"mean": "P", "ensemble": "E"},
        "epochs": config.epochs,
        "seconds": 60.0,
        "seed": config.seed,
        "config": config.as_json(),
        "versions": {"torch": "2.0"},
        "processor": "an abacus",
        "threads": 2,
        "commit": "0123456789",
        **changes,
    }
