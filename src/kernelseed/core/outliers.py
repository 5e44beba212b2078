"""Scores that tell inputs from elsewhere from those that a network was trained on: higher means "from elsewhere"."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernelseed.core.arguments import check_kind
from kernelseed.core.predictive import Classification
from kernelseed.errors import ArgumentError


def _energy(prediction: Classification) -> Tensor:
    if prediction.energy is None:
        raise ArgumentError(
            "the prediction keeps no energy, as it was made of probabilities or by an older version; predict again, "
            "from a network that gives logits."
        )
    return prediction.energy


SCORES: dict[str, Callable[[Classification], Tensor]] = {
    "max_probability": lambda prediction: 1 - prediction.confidence,
    "entropy": lambda prediction: prediction.entropy,
    "mutual_information": lambda prediction: prediction.mutual_information,
    "energy": _energy,
    "variation_ratio": lambda prediction: prediction.variation_ratio,
}
OF_DRAWS = ("mutual_information", "variation_ratio")
"""Scores of the draws' disagreement, which is 0 where there is one."""


def outlier_scores(prediction: Classification) -> dict[str, Tensor]:
    """Each score of each input. With p_s the probabilities and f_s the logits of draw s of S, and p their mean:

    max_probability      1 - max_k p_k                                      (Hendrycks and Gimpel, 2017)
    entropy              H(p) = -sum_k p_k log p_k, the total uncertainty
    mutual_information   H(p) - 1/S sum_s H(p_s), the draws' disagreement   (Houlsby et al., 2011)
    energy               -1/S sum_s log sum_k exp f_sk: each draw has an energy, and the score is their mean
                         (Liu et al., 2020, at temperature 1, is the case of one draw)
    variation_ratio      1 - max_k 1/S sum_s [argmax_j p_sj = k]            (Freeman, 1965)

    For one draw, such as the posterior mean, mutual_information and variation_ratio are 0 for every input.

    >>> import torch
    >>> p = Classification.from_logits(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))
    >>> {name: round(score.item(), 3) for name, score in outlier_scores(p).items()}
    {'max_probability': 0.5, 'entropy': 0.693, 'mutual_information': 0.328, 'energy': -2.127, 'variation_ratio': 0.5}
    """
    check_kind("prediction", prediction, Classification, "give what ks.predict returns for classes")
    return {name: score(prediction) for name, score in SCORES.items()}
