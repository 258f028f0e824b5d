# Everything runs in .venv, which the first target that needs it creates. Override with: make PYTHON=python3.12 test
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test lint bench accuracy clean

help:
	@echo "make demo      simulate naive attention and FlashAttention-2, write demo.html"
	@echo "make test      formatting, lint, types and tests"
	@echo "make lint      formatting, lint and types only"
	@echo "make bench     speed and accuracy benchmarks"
	@echo "make accuracy  simulate all that was measured (about 40 minutes of one core), write the tables of README and docs"
	@echo "make clean     remove .venv and caches"

demo: $(VENV)/.installed
	$(BIN)/gpusim simulate naive flash2 --model llama-3.1-8b --seq 4096 --gpu h200 --html demo.html

test: lint
	$(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/python -m experiments.bench

accuracy: $(VENV)/.installed
	$(BIN)/python -m experiments.accuracy --jobs $(WORKERS)

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpusim needs Python 3.11 or later; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-test: pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
