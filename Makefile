# The commands people try first. Each sets up what it needs; a second call finds it ready.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test lint format bench faults docs results clean

setup: $(READY)

# torch is pinned so that two machines that run this get the same numbers.
$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "kernelseed needs Python 3.10 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0 --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python -m kernelseed demo

# Two workers, which take tests from each other at the end. Threads that wait must not keep a core busy.
test: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The peers pin a torchvision that is not needed to measure them.
bench: $(READY)
	-$(BIN)/python -m pip install --quiet --no-deps bayesian-torch torchbayesian ivon-opt
	$(BIN)/python benchmarks/bench.py

# A hundred kills, and full disks: about ten minutes. As root it mounts small disks; else it does without them.
faults: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/faults.py --kills 100 --out results/faults.json

docs: $(READY)
	$(BIN)/python docs/build.py

# The numbers of the README and the docs, made again: hours. What is in results/ already is not trained again.
results: $(READY)
	mkdir -p runs
	$(BIN)/python -m kernelseed demo --out runs/results-demo --json > results/demo.json.part
	mv results/demo.json.part results/demo.json
	$(BIN)/python docs/build.py --commands > runs/commands
	PATH="$(abspath $(BIN)):$$PATH" sh -ex runs/commands

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
