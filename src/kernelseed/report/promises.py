"""What a run's validation data promises about its test data: thresholds to abstain below, and conformal sets."""

from __future__ import annotations

import torch

from kernelseed.core import Classification
from kernelseed.decisions import abstention, conformal
from kernelseed.errors import ArgumentError, MissingPackageError
from kernelseed.report.record import RunRecord

RISKS = (0.1, 0.05, 0.02, 0.01)
COVERAGE = 0.9


def kept_risks(run: RunRecord) -> list[str]:
    """For each of `RISKS`, the share of test answers and the error rate among them, by the threshold of a bound."""
    assert run.validation is not None
    found = []
    for risk in RISKS:
        try:
            rule = abstention(_classified(run.validation[0]), torch.tensor(run.validation[1]), risk)
        except ArgumentError:
            found.append("too few examples")
            continue
        keep = run.confidence > rule.threshold
        found.append(f"{(~run.correct[keep]).mean():.2%} of {keep.mean():.0%}" if keep.any() else "never answers")
    return found


def held_sets(run: RunRecord) -> list[str] | None:
    """Conformal sets of the test data: how often they hold the label, in all and in the worst class, and their size.

    None where they can't be made: without MAPIE, or with too few examples.
    """
    assert run.validation is not None
    try:
        fitted = conformal(_classified(run.validation[0]), torch.tensor(run.validation[1]), COVERAGE)
    except (ArgumentError, MissingPackageError):
        return None
    sets = fitted(_classified(run.probs)).numpy()
    held = sets[range(len(sets)), run.labels]
    worst = min((held[run.labels == k].mean(), k) for k in set(run.labels.tolist()))
    size = sets.sum(1)
    one = f"{(size == 1).mean():.0%}"
    return [f"{held.mean():.1%}", f"{worst[0]:.1%} ({run.class_names[worst[1]]})", f"{size.mean():.2f}", one]


def _classified(probs: object) -> Classification:
    return Classification.from_draws(torch.as_tensor(probs)[None])
