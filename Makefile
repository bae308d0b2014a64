# `make demo` and `make test` need Python 3.11+ with venv and pip, and make; the rest is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE := 1
# Tests run in parallel processes: one thread each, or they would compete for the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

.PHONY: demo test test-slow test-all lint docs pins clean

demo: .venv/ready
	$(BIN)/depict demo

# Lint, types and all fast tests.
test: .venv/ready lint
	$(PYTEST) -m "not slow"

# Whole processes, guides, torchrun, Chromium, torch.compile, ONNX.
test-slow: .venv/ready
	$(PYTEST) -m slow

test-all: test test-slow

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/: a link that leads nowhere is an error.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Pinned versions by name only; the stamp file makes the second call free.
.venv/ready: requirements/dev.txt requirements/uv.txt pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11, 4) and 'depict needs Python 3.11.4 or newer: make PYTHON=python3.12')"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode -r requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --no-deps --no-build-isolation -e .
	touch $@

# Resolve the newest versions again after a change of pyproject.toml.
pins:
	$(BIN)/uv pip compile --quiet --upgrade --universal --no-header --no-annotate --all-extras pyproject.toml -o requirements/dev.txt

clean:
	rm -rf .venv build dist site src/depict.egg-info
