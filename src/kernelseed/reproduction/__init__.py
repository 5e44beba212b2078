"""The paper's four tables and its figure: the runs that they need, and our numbers beside the published ones.

from kernelseed.reproduction import Plan, reproduce
reproduce(Plan("mnist", "small", networks=["baseline", "ksn-0.25"]), "runs/reproduce")
"""

from kernelseed.reproduction.claims import claims_markdown
from kernelseed.reproduction.panels import draw_figure, figure_points, write_panels
from kernelseed.reproduction.paper import published
from kernelseed.reproduction.plan import DATA, NETWORKS, OWN_ROWS, ROWS, Plan, Row, Run
from kernelseed.reproduction.presets import IMAGES, PRESETS, Preset
from kernelseed.reproduction.remarks import MARKS, OWN_DEFAULTS
from kernelseed.reproduction.result_files import read_log_probs
from kernelseed.reproduction.running import collected, read_results, reproduce
from kernelseed.reproduction.tables import PRINTED, Line, Table, paper_table, short_commit
from kernelseed.reproduction.writing import HEADING, RICH, lines_markdown, notes_markdown, table_latex, table_markdown

__all__ = [
    "DATA",
    "HEADING",
    "IMAGES",
    "MARKS",
    "NETWORKS",
    "OWN_DEFAULTS",
    "OWN_ROWS",
    "PRESETS",
    "PRINTED",
    "RICH",
    "ROWS",
    "Line",
    "Plan",
    "Preset",
    "Row",
    "Run",
    "Table",
    "claims_markdown",
    "collected",
    "draw_figure",
    "figure_points",
    "lines_markdown",
    "notes_markdown",
    "paper_table",
    "published",
    "read_log_probs",
    "read_results",
    "reproduce",
    "short_commit",
    "table_latex",
    "table_markdown",
    "write_panels",
]
