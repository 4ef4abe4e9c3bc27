# `make quickstart` and `make test` work on a fresh machine with Python 3.11: both make the environment if it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
BENCH_INSTALLED := .venv/.bench-installed
DOCS_INSTALLED := .venv/.docs-installed

.PHONY: quickstart test test-full loops lint bench bench-gpu scale docs clean

quickstart: $(INSTALLED)
	$(BIN)/lightning-tgnn fit --config recipes/quickstart.yaml

# The loops' own tests go first, beside the linters: ranks of one start would all compile the same loops.
# One thread a worker: those of several workers on two cores would stand in each other's way. Three workers: two start
# ranks, which leave some of the cores idle while they wait, and go before all others (tests/conftest.py).
LOOPS := $(addprefix tests/,algorithms/partitions algorithms/streams algorithms/traffic models/memory)
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --durations 20

ALL := $(PYTEST) --numprocesses 3 --dist loadfile --no-loadscope-reorder --doctest-modules lightning_tgnn tests

test: $(INSTALLED)
	$(MAKE) --jobs 2 --output-sync lint loops
	$(ALL) -m "not full" $(LOOPS:%=--ignore %)

# And what `make test` leaves out: every strategy with every model, mutated files, faults at every stage.
test-full: test
	$(ALL) -m full

loops: .venv/.loops-cached
	$(PYTEST) --numprocesses 2 --dist loadfile -m "not full" $(LOOPS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BENCH_INSTALLED)
	$(BIN)/python -m pytest tests/benchmarks --override-ini addopts= --benchmark-disable-gc -s

# On a machine with a GPU, by the Python at hand (PYTHON=...), which needs torch, lightning and torch-geometric.
bench-gpu:
	$(PYTHON) -m tests.benchmarks.gpu

# 191 million events and 100 million edges: half an hour, 16 GiB of memory and 60 GB of disk.
scale: $(INSTALLED)
	$(BIN)/python -m pytest tests/scale --override-ini addopts= -s -x

# numba notices only changes of a file itself, not of those that it calls into: with one of them all its caches go.
.venv/.loops-cached: $(shell find lightning_tgnn -name '*_loops.py') $(INSTALLED)
	find lightning_tgnn -name '*.nb[ic]' -delete
	touch $@

# The pages: build/docs/index.html. Needs no network beside the package index.
docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv build *.egg-info

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

$(BENCH_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,bench]'
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,docs]'
	touch $@
