# `make chat` and `make test` are all that a fresh machine needs: Python 3.11+, make, a C++ compiler and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# llama-cpp-python is compiled here. Its picture and audio library is not used, and leaving it out saves minutes.
# A machine with a GPU adds its own flags: CMAKE_ARGS="-DGGML_CUDA=on" make setup
CMAKE_ARGS ?= -DLLAVA_BUILD=OFF
export CMAKE_ARGS

.PHONY: setup chat test lint bench gpu-check docs clean lock

setup: $(READY)

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; set PYTHON=...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[demo,dev]'
	@touch $(READY)

chat: $(READY)
	@$(BIN)/skippy-tui

test: $(READY)
	$(BIN)/python -m pytest -q

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Strategies beside plain decoding and llama.cpp alone, one prompt of each kind. It tells how long it will take.
# BENCH adds options, for instance: make bench BENCH="--category chat,copy --emulate-rtt-ms 20"
bench: $(READY)
	$(BIN)/skippy-engine bench --baseline --limit 1 $(BENCH)

# What stages compute on this machine's GPU, and how fast (docs/gpu.md). llama.cpp must have been built for it.
gpu-check: $(READY)
	$(BIN)/python -m tests.gpu.check --out gpu-check

# The page of all settings, from the table that flags and files are read by.
docs: $(READY)
	$(BIN)/python -m engine.config.page > docs/configuration.md

# The exact versions that were tested together, for every package but this one.
lock: $(READY)
	$(BIN)/python -m pip freeze --exclude-editable --exclude skippy > requirements.lock

clean:
	rm -rf $(VENV) dist build
