"""The paper's four tables and its figure: which runs they need, and ours beside the published numbers.

from kernelseed.reproduction import Plan, reproduce
reproduce(Plan("mnist", "small", networks=["baseline", "ksn-0.25"]), "runs/reproduce")
"""

from kernelseed.reproduction.paper import published
from kernelseed.reproduction.plan import DATA, NETWORKS, PRESETS, ROWS, Plan, Row, Run
from kernelseed.reproduction.running import collected, read_results, reproduce
from kernelseed.reproduction.tables import Table, table

__all__ = [
    "DATA",
    "NETWORKS",
    "PRESETS",
    "ROWS",
    "Plan",
    "Row",
    "Run",
    "Table",
    "collected",
    "published",
    "read_results",
    "reproduce",
    "table",
]
