# Two commands do all set-up on a fresh machine: `make demo` and `make test`.
# PYTHON=/path/to/python3 chooses the interpreter; otherwise the first python3 >= 3.10 that runs is taken.
# INSTALL_FLAGS are handed to pip, as in INSTALL_FLAGS='--no-index --find-links wheels'.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
DEMO := build/demo

.PHONY: help demo test check format bench evaluate clean

help:  ## say what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

$(INSTALLED): pyproject.toml constraints.txt
	@found=""; \
	for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10 python3.14; do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then found="$$python"; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "No python3 >= 3.10 with venv was found. Install one (Debian: python3-venv), or name it: make PYTHON=/path/to/python3 ..." >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$("$$found" --version), once; torch makes this take a few minutes" >&2; \
	"$$found" -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check $(INSTALL_FLAGS) -c constraints.txt -e '.[torch,dev]' >&2
	@touch $@

demo: $(INSTALLED)  ## record two runs of a small model, compare them, open the terminal
	@mkdir -p $(DEMO) && rm -f $(DEMO)/*.h5 $(DEMO)/*.h5.part $(DEMO)/*.h5.journal $(DEMO)/*.ldiff
	$(RUN) -m layerdiff record -o $(DEMO)/reference.h5 -- captures/infer.py
	$(RUN) -m layerdiff record -o $(DEMO)/target.h5 -- captures/infer.py --layer-3-epsilon 1e-5
	@$(RUN) -m layerdiff diff $(DEMO)/reference.h5 $(DEMO)/target.h5 -o $(DEMO)/run.ldiff >$(DEMO)/summary.txt || [ $$? -eq 1 ]  # 1: a defect, as it should be
	@if [ -t 0 ] && [ -t 1 ]; then \
	  $(RUN) -m layerdiff show $(DEMO)/run.ldiff || [ $$? -eq 1 ]; \
	else \
	  cat $(DEMO)/summary.txt; \
	fi
	@echo "layerdiff is $(CURDIR)/$(VENV)/bin/layerdiff, and these traces are in $(DEMO)/" >&2

test: $(INSTALLED)  ## all tests
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist loadfile $(ARGS)

check: $(INSTALLED)  ## lint, format, types, import order
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

format: $(INSTALLED)  ## rewrite files as `make check` wants them
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(INSTALLED)  ## speed and memory, one table
	@$(RUN) -m tests.bench $(ARGS)

evaluate: $(INSTALLED)  ## the table of truth: faults, fault-free pairs, many kills
	@$(RUN) -m tests.evaluate $(ARGS)

clean:  ## remove everything that make and the tests made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache snapshot_report.html
	find layerdiff tests captures -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
