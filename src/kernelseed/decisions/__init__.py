"""What to do with a prediction, with guarantees: answer or abstain, and sets or intervals that hold the truth.

    abstention(prediction, labels, risk)       a confidence above which few answers are wrong, by a bound that holds
    conformal(prediction, labels, coverage)    sets of classes, or intervals, that hold the truth this often (MAPIE)

Both take predictions for labelled data that was not trained on, and hold for new data that is like it.
"""

from kernelseed.decisions.abstaining import Abstention, abstention
from kernelseed.decisions.conformal_sets import ConformalIntervals, ConformalSets, conformal

__all__ = ["Abstention", "ConformalIntervals", "ConformalSets", "abstention", "conformal"]
