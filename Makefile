# Everything is installed into .venv; nothing outside the checkout is changed but the
# per-user cache that holds the broker's jars (see services/embedded).
PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv

.PHONY: setup demo test test-long check format bench lock clean

setup: .venv/.installed

.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headway needs Python 3.11 or later; $(PYTHON) is older. Name another: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.lock
	$(UV) pip sync --quiet --require-hashes requirements.lock --python $(BIN)/python
	$(UV) pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python -e .
	@touch $@

demo: setup
	$(BIN)/headway demo

test: setup
	$(BIN)/pytest

# Faults at their full length: a minute without broker or ClickHouse, 50 kills, kills of everything.
test-long: setup
	$(BIN)/pytest -m long

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/headway bench

# The lock names no registry host: the installer's own settings say where packages come from.
lock: setup
	$(UV) pip compile --quiet pyproject.toml --extra dev --universal --generate-hashes \
	  --no-emit-index-url --no-header -o requirements.lock
	echo 'uv==0.13.9' | $(UV) pip compile --quiet - --universal --generate-hashes \
	  --no-emit-index-url --no-header -o requirements-bootstrap.lock

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
