# Needs a Python 3.12, 3.13 or 3.14 (found by tools/find_python.sh, or given as PYTHON=...) and nothing else.
# Arguments for the command behind a target: make test ARGS="-k graph", make demo ARGS="--help".

ARGS =
VENV = .venv
BIN = $(VENV)/bin
export PYTHON

.PHONY: help install demo test test-oldest lint bench

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1: \2/p' Makefile

install: ## Make .venv with the pinned versions and janus-jax in editable mode; once is enough
	@$(SHELL) tools/install.sh $(VENV) requirements.lock

demo: install ## Train a small potential on water and run it in MD
	@$(BIN)/janus-jax demo $(ARGS)

test: install ## Run the tests with two workers
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

test-oldest: ## Run the core tests with the oldest jax and flax we support, in .venv-oldest
	@$(SHELL) tools/install.sh .venv-oldest requirements-oldest.lock
	@.venv-oldest/bin/python -m pytest -n 2 --dist worksteal -m core $(ARGS)

lint: install ## Check style, layers of imports and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports
	@$(BIN)/pyright

bench: install ## Measure speed, as ratios within one run
	@$(BIN)/python benchmarks/run.py $(ARGS)
