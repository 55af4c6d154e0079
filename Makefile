# Everything that is done to this repository. `make` or `make help` lists it.
# A fresh clone needs GNU make and Python 3.11 or later; the rest is installed into .venv.

is_new_enough := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(or $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p $(is_new_enough) 2>/dev/null && echo $$p && break; done),python3)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-gpu format lint types docs bench check clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv, install octavo and its tools, fetch the embedded model
	@$(BIN)/octavo pull smollm2-135m

# The stamp is the last thing written: an install that failed is tried again.
$(STAMP): requirements-dev.txt pyproject.toml
	@rm -f $@
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		$(PYTHON) $(is_new_enough) 2>/dev/null || { \
			echo "octavo needs Python 3.11 or later, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." \
				"Name another one: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }; \
		$(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: setup  ## eight chat requests that share a system prompt, and what memory they took
	@$(BIN)/python examples/demo.py $(ARGS)

test: setup  ## all tests that fit ten minutes on two cores (ARGS="-k name" picks some)
	$(BIN)/pytest -m "not slow and not net" $(ARGS)

test-full: setup  ## the same and the long ones
	$(BIN)/pytest -m "not net" $(ARGS)

# A driver's or a library's warning is no fault of these tests.
test-gpu: setup  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu tests/gpu -q -W default $(ARGS)

format: $(STAMP)  ## rewrite the sources in the one format, sort imports
	$(BIN)/ruff check --select I --fix
	$(BIN)/ruff format

lint: $(STAMP)  ## rules, format and who may import whom; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(STAMP)  ## check types with pyright
	$(BIN)/pyright

docs: $(STAMP)  ## build the documentation into site/; a broken link is an error
	$(BIN)/mkdocs build --strict

bench: $(STAMP)  ## time the deciding plane (pytest-benchmark)
	$(BIN)/pytest benchmarks/micro --benchmark-only $(ARGS)

check: lint types test docs  ## all that must pass before a change lands

clean:  ## remove caches and built files; keeps .venv and the model
	rm -rf site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find src tests benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
