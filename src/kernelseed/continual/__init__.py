"""Continual learning: tasks one after another, with the posterior of each as the prior of the next.

>>> from torch import nn
>>> from kernelseed import continual, data
>>> tasks = continual.split_classes(data.load("digits"))[:2]
>>> trunk = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
>>> found = continual.learn(tasks, trunk, continual.FineTune(epochs=5), progress=False)
>>> found.accuracy.shape
torch.Size([2, 2])
"""

from kernelseed.continual.approaches import Approach, FineTune, Joint
from kernelseed.continual.benchmarks import BENCHMARKS, read_results_of, run_benchmark
from kernelseed.continual.coresets import Coreset, k_centre, random_rows
from kernelseed.continual.curves import HEADING, lines_of, write_curves
from kernelseed.continual.ewc import EWC, diagonal_fisher, penalty
from kernelseed.continual.heads import MultiHead
from kernelseed.continual.learning import learn
from kernelseed.continual.outcome import Outcome
from kernelseed.continual.task import Task, permute_pixels, split_classes
from kernelseed.continual.vcl import VCL

__all__ = [
    "BENCHMARKS",
    "EWC",
    "HEADING",
    "VCL",
    "Approach",
    "Coreset",
    "FineTune",
    "Joint",
    "MultiHead",
    "Outcome",
    "Task",
    "diagonal_fisher",
    "k_centre",
    "learn",
    "lines_of",
    "penalty",
    "permute_pixels",
    "random_rows",
    "read_results_of",
    "run_benchmark",
    "split_classes",
    "write_curves",
]
