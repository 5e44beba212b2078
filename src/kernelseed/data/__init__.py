"""Data sets in memory: loaded by name, images kept as bytes, normalised batch by batch.

>>> from kernelseed import data
>>> digits = data.load("digits", validation=0.1)
>>> digits.train, digits.validation, digits.test
(Split(1295 x 1 x 8 x 8), Split(143 x 1 x 8 x 8), Split(359 x 1 x 8 x 8))
>>> batches = data.Batches(digits.train, digits.mean, digits.std, batch_size=128, shuffle=True, seed=1)
>>> for epoch in range(2):
...     batches.set_epoch(epoch)
...     for x, y in batches:
...         pass
>>> x.dtype, len(batches)
(torch.float32, 11)

`data.available()` lists the names; `folder:PATH` loads images of your own, and `csv:PATH` a table.
"""

from kernelseed.data.batches import Batches, augment, normalise
from kernelseed.data.columns import Table, Target
from kernelseed.data.corruptions import CORRUPTIONS, SEVERITIES, CorruptedBatches, corrupt, corruption_names
from kernelseed.data.dataset import Dataset, Split, stratified_split
from kernelseed.data.images import read_images
from kernelseed.data.loading import Available, absolute_name, available, fetch, load, load_test
from kernelseed.data.table_file import CSV, TASKS, TableOptions, hold_out, standardised
from kernelseed.errors import DataError

__all__ = [
    "CORRUPTIONS",
    "CSV",
    "SEVERITIES",
    "TASKS",
    "Available",
    "Batches",
    "CorruptedBatches",
    "DataError",
    "Dataset",
    "Split",
    "Table",
    "TableOptions",
    "Target",
    "absolute_name",
    "augment",
    "available",
    "corrupt",
    "corruption_names",
    "fetch",
    "hold_out",
    "load",
    "load_test",
    "normalise",
    "read_images",
    "standardised",
    "stratified_split",
]
