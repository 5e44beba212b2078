"""What the JSON files of a run hold."""

from __future__ import annotations

from kernelseed import metrics
from kernelseed.core import SCORES
from kernelseed.data import CORRUPTIONS
from kernelseed.training.schema import COUNT, CURVE, NUMBER, OBJECT, SIZE, TEXT, TEXT_OR_NULL, WHOLE, Schema

RUN_SCHEMA: Schema = {
    "network": {"kind": TEXT},
    "training": OBJECT,
    "data": {"name": TEXT, "classes": [TEXT], "image": [SIZE], "mean": [NUMBER], "std": [NUMBER]},
    "trained?": OBJECT,
}
TABLE_SCHEMA: Schema = {
    "columns": [{"name": TEXT, "categories?": [TEXT]}],
    "target": {"name": TEXT},
}
NUMBERS_SCHEMA: Schema = {**TABLE_SCHEMA, "target": {"name": TEXT, "mean": NUMBER, "std": NUMBER}}
RESULT_SCHEMA: Schema = {
    "metrics": {"mean": dict.fromkeys(metrics.METRICS, NUMBER), "ensemble?": dict.fromkeys(metrics.METRICS, NUMBER)},
    "parameters": {"trained": COUNT, "stored": COUNT, "plain": COUNT, "relative": NUMBER},
    "labels": {"mean": TEXT, "ensemble": TEXT},
    "epochs": COUNT,
    "seconds": NUMBER,
    "seed": WHOLE,
    "config": {"data": TEXT, "method": TEXT, "options": OBJECT},
    "trained?": OBJECT,
    "versions": OBJECT,
    "processor": TEXT,
    "threads": COUNT,
    "commit": TEXT_OR_NULL,
}
OF_NUMBERS: Schema = dict.fromkeys(metrics.REGRESSION_METRICS, NUMBER)
REGRESSION_RESULT_SCHEMA: Schema = {**RESULT_SCHEMA, "metrics": {"mean": OF_NUMBERS, "ensemble?": OF_NUMBERS}}
EVALUATION_SCHEMA: Schema = {"metrics": OBJECT}
FOUND_SCHEMAS: dict[str, Schema] = {
    "shift": {
        "labels": {"mean": TEXT, "ensemble": TEXT},
        "config": {"data": TEXT},
        "images": COUNT,
        "curves": {
            way: {f"{name}?": dict.fromkeys(("accuracy", "nll", "ece"), CURVE) for name in CORRUPTIONS}
            for way in ("mean", "ensemble?")
        },
    },
    "ood": {
        "sets": [
            {
                "name": TEXT,
                "converted": TEXT_OR_NULL,
                "scores": {
                    way: {f"{score}?": dict.fromkeys(("auroc", "aupr", "fpr_at_95_tpr"), NUMBER) for score in SCORES}
                    for way in ("mean", "ensemble?")
                },
            }
        ],
    },
}
"""What commands find out about a finished run, a file each: NAME.json."""
