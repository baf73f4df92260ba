# All that a developer types. Every target makes what it needs: a virtual environment in .venv,
# filled anew only when pyproject.toml changes.
#   make clean demo PYTHON=/path/to/python3.11    to use another Python than that of a .venv that is there
#   make test WORKERS=8    to run more tests at a time than there are processors

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= $(shell nproc)
WAITING ?= $(shell expr $(WORKERS) + 1)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
RUN := $(VENV)/.hemiola-run
LIVE := $(VENV)/.hemiola-live
DEV := $(VENV)/.hemiola-dev
DOCS := $(VENV)/.hemiola-docs

.PHONY: help demo demo-live live-machine test test-processes test-system test-all check static format-check lint types layers bench results docs generated picture format clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

demo: $(RUN)  ## compare five policies on a congested cluster and write a report (two minutes at most)
	@echo "Compiling the network kernel (seconds the first time, then cached) ..."
	@$(BIN)/python -c "from hemiola.kernels.fluid import warm_up; warm_up()"
	$(BIN)/hemiola simulate --demo
	@echo
	@echo "The report: $(CURDIR)/hemiola-demo.html (open it in a browser; it needs no network)"

demo-live: live-machine $(LIVE)  ## run the same jobs on a real Slurm, placed by Slurm and by Hemiola (five minutes; as root)
	@$(BIN)/python examples/demo_live.py

live-machine: $(RUN)
	@$(BIN)/python examples/demo_live.py --check

test: $(DEV)  ## run the tests of pure code, and a short real run of each kind (five minutes at most)
	$(BIN)/python -m pytest tests/unit -n $(WORKERS) --dist worksteal

test-processes: $(DEV)  ## run the tests that start processes: ranks, launchers, databases
	$(BIN)/python -m pytest tests/processes -n $(WAITING) --dist worksteal

test-system: $(DEV)  ## run the tests on real engines, labs and browsers (as root)
	$(BIN)/python -m pytest tests/system -n $(WAITING) --dist loadgroup

test-all: test test-processes test-system  ## run all tests

check: static test  ## format, lint, types, layers, and `make test`: what has to pass before a change is merged

static: format-check lint types layers

format-check: $(DEV)
	$(BIN)/ruff format --check

lint: $(DEV)
	$(BIN)/ruff check

types: $(DEV)
	$(BIN)/mypy
	$(BIN)/mypy examples/*.py

layers: $(DEV)
	$(BIN)/lint-imports

bench: $(DEV)  ## measure speed, as multiples of the bare loop in benchmarks/floor.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/contention.py
	$(BIN)/python benchmarks/executor.py

results: $(DEV)  ## find where network-awareness pays (takes long)
	$(BIN)/python benchmarks/network_sensitivity.py

docs: $(DOCS)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation: $(CURDIR)/site/index.html"

generated: $(DEV)  ## write the generated reference pages and the examples' outputs anew
	$(BIN)/python tools/generated.py

picture: $(RUN)  ## take the README's picture of the report anew (needs chromium)
	mkdir -p out
	$(BIN)/hemiola simulate --demo --report out/demo.html
	tools/screenshot.sh out/demo.html docs/images/report.png

format: $(DEV)  ## put the code into its one form
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

clean:  ## remove what make made
	rm -rf $(VENV) site out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(RUN): pyproject.toml
	@echo "Installing into $(VENV) ..."
	@tools/venv.sh $(PYTHON) $(VENV)
	@$(PIP) install --editable .
	@touch $@

$(LIVE): $(RUN)
	@echo "Installing PyTorch and what a live cluster needs ..."
	@$(PIP) install --editable '.[torch,lab,serve]' torch==2.13.0
	@touch $@

$(DEV): $(RUN)
	@echo "Installing the development tools ..."
	@$(PIP) install --upgrade "pip>=25.1"
	@$(PIP) install --group dev
	@touch $@

$(DOCS): $(DEV)
	@$(PIP) install --group docs
	@touch $@
