"""A report that compares runs: one self-contained HTML file.

    write(read([path, ...]), "report.html")     read: run folders to a list of RunRecord

The figures can be used on their own: `kernelseed.report.figures`.
"""

from kernelseed.report.page import render, write
from kernelseed.report.reading import read
from kernelseed.report.record import RegressionRecord, RunRecord

__all__ = ["RegressionRecord", "RunRecord", "read", "render", "write"]
