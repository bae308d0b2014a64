# `make demo` and `make test` need Python 3.11+ with venv and pip, and make; the rest is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE := 1

.PHONY: demo test lint pins clean

demo: .venv/ready
	$(BIN)/depict demo

test: .venv/ready lint
	$(BIN)/pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Pinned versions by name only; the stamp file makes the second call free.
.venv/ready: requirements/dev.txt requirements/uv.txt pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'depict needs Python 3.11 or newer: make PYTHON=python3.11')"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode -r requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --no-deps --no-build-isolation -e .
	touch $@

# Resolve the newest versions again after a change of pyproject.toml.
pins:
	$(BIN)/uv pip compile --quiet --upgrade --universal --no-header --no-annotate --all-extras pyproject.toml -o requirements/dev.txt

clean:
	rm -rf .venv build src/depict.egg-info
