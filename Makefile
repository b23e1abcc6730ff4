# Everything sets itself up: .venv is made when it is missing and again when the pins in requirements.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The workers' torch.  A Python with torch that is already on this machine is used instead (BENCH_RUNNER_PYTHON, an
# active environment, or PATH), so that nobody downloads it twice.
TORCH ?= torch==2.13.0
PROFILE ?= quick
RUN_ARGS ?=
TEST_ARGS ?=

.PHONY: schemas bench test test-slow test-all check install evaluate lock-requirements clean

bench: $(VENV)/.torch ## set up, measure this machine with the quick profile, show the report
	$(BIN)/bench-runner run --profile $(PROFILE) $(RUN_ARGS)

test: $(VENV)/.torch-in-venv check ## set up, check the code, run the tests that take minutes at most
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -m "not slow and not timing and not gpu" $(TEST_ARGS)
	$(BIN)/coverage combine --quiet
	@echo "coverage: $$($(BIN)/coverage report --format=total) %"

test-slow: $(VENV)/.torch-in-venv ## the tests that `make test` leaves out; for a GPU where there is one
	$(BIN)/pytest -m "(slow or gpu) and not timing" $(TEST_ARGS)

test-all: $(VENV)/.torch-in-venv check ## the same with the slow tests, and those for a GPU where there is one
	$(BIN)/pytest -m "not timing" $(TEST_ARGS)

check: $(VENV)/.installed ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

evaluate: $(VENV)/.torch-in-venv ## measure the suite itself; the tables go into docs/evaluation.md
	$(BIN)/python -m tests.evaluate

install: $(VENV)/.torch ## set up only

$(VENV)/.installed: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bench-runner needs Python 3.11 or newer; name one with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.torch: $(VENV)/.installed
	$(BIN)/python -c 'from bench_runner.interpreter import find_worker_python; print("workers:", find_worker_python().path)' \
		2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	touch $@

$(VENV)/.torch-in-venv: $(VENV)/.installed
	$(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	touch $@ $(VENV)/.torch

lock-requirements: ## pin anew after a change of pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --extra test --no-emit-index-url --no-annotate \
		--no-header pyproject.toml --output-file requirements.txt

schemas: $(VENV)/.installed ## docs/schemas anew after a change of a record's type
	$(BIN)/python -m bench_runner.schemas docs/schemas

clean: ## remove what the above made, not the results
	rm -rf $(VENV) .asv .bench-runner .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* build *.egg-info
