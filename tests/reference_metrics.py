"""The metrics once more, slowly: plain Python floats and loops, written from the definitions."""

import math


def predictions(probs):
    """(confidence, predicted class) of each row, the first class on ties."""
    return [(max(row), row.index(max(row))) for row in probs]


def accuracy(probs, labels):
    return sum(k == y for (_, k), y in zip(predictions(probs), labels, strict=True)) / len(labels)


def nll(probs, labels):
    return sum(-math.log(row[y]) for row, y in zip(probs, labels, strict=True)) / len(labels)


def brier(probs, labels):
    total = 0.0
    for row, y in zip(probs, labels, strict=True):
        for k, p in enumerate(row):
            total += (p - (k == y)) ** 2
    return total / len(labels)


def _gaps(groups):
    """(count, |accuracy - confidence|) of each group of (confidence, correct) that is not empty."""
    out = []
    for group in groups:
        if group:
            confidence = sum(c for c, _ in group) / len(group)
            accuracy = sum(right for _, right in group) / len(group)
            out.append((len(group), abs(accuracy - confidence)))
    return out


def _equal_width(probs, labels, bins):
    groups = [[] for _ in range(bins)]
    for (c, k), y in zip(predictions(probs), labels, strict=True):
        for b in range(bins):
            if b / bins < c <= (b + 1) / bins or (b == bins - 1 and c > 1):
                groups[b].append((c, k == y))
    return _gaps(groups)


def ece(probs, labels, bins):
    return sum(n * gap for n, gap in _equal_width(probs, labels, bins)) / len(labels)


def ace(probs, labels, bins):
    gaps = [gap for _, gap in _equal_width(probs, labels, bins)]
    return sum(gaps) / len(gaps)


def mce(probs, labels, bins):
    return max(gap for _, gap in _equal_width(probs, labels, bins))


def adaptive_ece(probs, labels, bins):
    """Walk up the sorted confidences; leave a bin once it has its share, but never between two that tie."""
    examples = sorted((c, k == y) for (c, k), y in zip(predictions(probs), labels, strict=True))
    groups, group, b = [], [], 1
    for i, example in enumerate(examples):
        group.append(example)
        tied = i + 1 < len(examples) and examples[i + 1][0] == example[0]
        if not tied and (i + 1) * bins >= b * len(examples):
            groups.append(group)
            group = []
            while (i + 1) * bins >= b * len(examples):
                b += 1
    assert not group
    return sum(n * gap for n, gap in _gaps(groups)) / len(examples)


def risk_at(threshold, confidence, correct):
    answered = [right for c, right in zip(confidence, correct, strict=True) if c >= threshold]
    return 1 - sum(answered) / len(answered)


def risk_coverage(confidence, correct):
    curve = []
    for t in sorted(set(confidence), reverse=True):
        curve.append((sum(c >= t for c in confidence) / len(confidence), risk_at(t, confidence, correct)))
    return curve


def aurc(confidence, correct):
    """Ties in each of their rotations, in which every one of them is as often at every place."""
    total, answered, errors = 0.0, 0, 0
    for t in sorted(set(confidence), reverse=True):
        tied = [not right for c, right in zip(confidence, correct, strict=True) if c == t]
        for shift in range(len(tied)):
            wrong = errors
            for place, one in enumerate(tied[shift:] + tied[:shift], answered + 1):
                wrong += one
                total += wrong / place / len(tied)
        answered, errors = answered + len(tied), errors + sum(tied)
    return total / len(confidence)


def threshold_at_risk(confidence, correct, risk):
    for t in sorted(set(confidence)):
        answered = [right for c, right in zip(confidence, correct, strict=True) if c >= t]
        if (len(answered) - sum(answered)) / len(answered) <= risk:
            return t
    return math.inf


def auroc(inside, out):
    wins = 0.0
    for o in out:
        for i in inside:
            wins += 1.0 if o > i else 0.5 if o == i else 0.0
    return wins / (len(inside) * len(out))


def fpr_at_95_tpr(inside, out):
    for t in sorted(set(out), reverse=True):
        if 100 * sum(o >= t for o in out) >= 95 * len(out):
            return sum(i >= t for i in inside) / len(inside)
    raise AssertionError("the lowest score of all flags everything")
