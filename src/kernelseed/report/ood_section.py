"""Out-of-distribution data in the report: how far each score tells it from the test data."""

from __future__ import annotations

from collections.abc import Sequence

from kernelseed.metrics import Metric
from kernelseed.report import figures, findings
from kernelseed.report.sections import Block, Figures, Panel, Section, Shown, Table, Words

TITLES = {
    "max_probability": ("Max. prob.", "one minus the largest probability"),
    "entropy": ("Entropy", "entropy of the mean probabilities"),
    "mutual_information": ("Mut. inf.", "mutual information: the draws' disagreement"),
    "energy": ("Energy", "mean energy of the draws, from their logits"),
    "variation_ratio": ("Var. ratio", "share of draws that vote against the majority"),
}
MEASURES = {
    "auroc": ("AUROC", "higher"),
    "aupr": ("AUPR", "higher"),
    "fpr_at_95_tpr": ("FPR at 95% found", "lower"),
}


def section(shown: Sequence[Shown]) -> Section | None:
    """Histograms of entropy and a table of scores, for each data set that a run was tested on."""
    holding = [one for one in shown if "ood" in one.run.found]
    if not holding:
        return None
    names = dict.fromkeys(kept["name"] for one in holding for kept in one.run.found["ood"]["sets"])
    blocks: list[Block] = [
        Words(
            "Predictive entropy on the test data (upward) and on out-of-distribution data (downward, hollow), as "
            "shares on a square-root scale. AUROC is the chance that an out-of-distribution example has the higher "
            "score: 0.5 is guessing, 1 is perfect. AUPR is the average precision with out-of-distribution as the "
            "positive class; FPR is the share of test examples that are flagged when 95% of the others are. One "
            "network, as a mean is, has no draws that could disagree."
        )
    ]
    for name in names:
        blocks += _data_set(name, holding)
    return Section("ood", "Out of distribution", "Does it notice out-of-distribution data?", blocks)


def _data_set(name: str, holding: Sequence[Shown]) -> list[Block]:
    found = [
        (one, kept)
        for one in holding
        for kept in one.run.found["ood"]["sets"]
        if kept["name"] == name and one.run.way in kept["scores"]
    ]
    blocks: list[Block] = [Figures(_histograms(name, [one for one, _ in found]), small=True)]
    for measure, (title, better) in MEASURES.items():
        columns = [Metric(score, *TITLES[score], better=better, template="{:.3f}") for score in TITLES]  # type: ignore[arg-type]
        rows = [
            (one, [kept["scores"][one.run.way].get(score, {}).get(measure) for score in TITLES]) for one, kept in found
        ]
        blocks.append(Table(f"{title}, against {name}", columns, rows))
    converted = dict.fromkeys(kept["converted"] for _, kept in found if kept.get("converted"))
    return [*blocks, *(Words(f"Images of {name}: {said}.") for said in converted)]


def _histograms(name: str, holding: Sequence[Shown]) -> list[Panel]:
    given = [(one, one.run.ood_entropy[name]) for one in holding if name in one.run.ood_entropy]
    high = max((float(max(one.run.entropy.max(), out.max())) for one, out in given), default=1.0) or 1.0
    panels = []
    for one, out in given:
        shares = figures.Histogram.of(one.run.entropy, out, 0.0, high)
        inside = findings.data_name(one.run) or "test data"
        svg = figures.back_to_back(shares, one.look, "entropy in nats", inside, name)
        kept = next(kept for kept in one.run.found["ood"]["sets"] if kept["name"] == name)
        measured = kept["scores"].get(one.run.way, {}).get("entropy")
        panels.append(Panel(svg, one, f"AUROC {measured['auroc']:.3f}" if measured else ""))
    return panels
