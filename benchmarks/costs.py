"""Measure what layers cost on this kind of processor, and write it into the table by which they choose.

python benchmarks/costs.py            # a few seconds, on a machine that does nothing else
python benchmarks/costs.py --show     # only print it
"""

import argparse
import dataclasses
import json

from kernelseed.fast.costs import TABLE, Costs
from kernelseed.fast.processor import processor_kind
from kernelseed.system.files import write_json
from kernelseed.training.origin import provenance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--other", action="store_true", help="also what kinds that are not in the table take")
    chosen = parser.parse_args()
    found = {name: float(f"{value:.3g}") for name, value in dataclasses.asdict(Costs.measured(repeats=51)).items()}
    print(processor_kind(), found)
    if chosen.show:
        return
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    for kind in (processor_kind(), *(["other"] if chosen.other or not table else [])):
        table[kind] = {**found, **provenance()}
    write_json(TABLE, table)


if __name__ == "__main__":
    main()
