"""Answers and sets with guarantees, on real data: how often they hold over many splits.

    kernelseed train --data fashion-mnist --method ksn --width 16 --epochs 3 --validation .1 --out runs/fashion \\
        --delta .25 --over weights --kl automatic --rho-lr 1 --warmup 0 --plain-epochs 0 --update-bn 4096
    python benchmarks/decisions.py runs/fashion results/decisions.json

The run's 16,000 predictions for images that it was not trained on are split again and again: a threshold and sets are
chosen on 6,000 of them and tested on the others.
"""

import sys
from pathlib import Path

import torch

import kernelseed as ks
from kernelseed.system import write_json
from kernelseed.training import RunFolder, provenance

RISK, CONFIDENCE, COVERAGE, SPLITS, CHOOSE = 0.05, 0.95, 0.9, 200, 6000


def part(p, rows):
    return ks.Classification(p.probs[rows], p.expected_entropy[rows], p.variance[rows])


def one_split(p, labels, generator):
    """The error rates of the two thresholds, what they answer, and how often the sets hold the label."""
    order = torch.randperm(len(labels), generator=generator)
    (chosen, y), (new, truth) = ((part(p, rows), labels[rows]) for rows in (order[:CHOOSE], order[CHOOSE:]))
    wrong = new.label != truth
    plug_in = new.confidence >= ks.metrics.threshold_at_risk(chosen.confidence, chosen.label == y, RISK)
    bounded = ~ks.abstention(chosen, y, RISK, CONFIDENCE).abstains(new)
    found = {
        name: {"error": wrong[keep].double().mean().item(), "answered": keep.double().mean().item()}
        for name, keep in (("plug_in", plug_in), ("bound", bounded))
    }
    for name, by_class in (("sets", False), ("sets_by_class", True)):
        sets = ks.conformal(chosen, y, COVERAGE, by_class=by_class)(new)
        held = sets[torch.arange(len(truth)), truth].double()
        found[name] = {
            "coverage": held.mean().item(),
            "by_class": [held[truth == k].mean().item() for k in range(sets.shape[1])],
            "size": sets.sum(1).double().mean().item(),
        }
    return found


def main(folder, out):
    run = RunFolder(folder)
    parts = [run.prediction(name, "ensemble") for name in ("validation", "test")]
    values = [torch.cat([getattr(p, name) for p, _ in parts]) for name in ("probs", "expected_entropy", "variance")]
    p, labels = ks.Classification(*values), torch.cat([y for _, y in parts])
    generator = torch.Generator().manual_seed(0)
    splits = [one_split(p, labels, generator) for _ in range(SPLITS)]
    settings = {"risk": RISK, "confidence": CONFIDENCE, "coverage": COVERAGE, "choose": CHOOSE, "examples": len(labels)}
    classes = run.config()["data"]["classes"]
    result = {
        "settings": settings,
        "classes": classes,
        "splits": splits,
        "config": run.result()["config"],
        **provenance(),
    }
    write_json(Path(out), result)
    for name in ("plug_in", "bound"):
        broken = sum(split[name]["error"] > RISK for split in splits)
        print(f"{name}: the risk was broken in {broken} of {SPLITS} splits")


if __name__ == "__main__":
    main(*sys.argv[1:])
