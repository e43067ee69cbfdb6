# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
# Each builds .venv with what it needs; the others reuse it. JAX's libraries want other versions, and get .venv-jax.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
JAX_VENV := .venv-jax
JAX_BIN := $(JAX_VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet

.PHONY: help demo test testjax check lint types format docs bench fuzz study clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.demo  ## the main job on a small example: a diagnosis on one screen, and report/report.html
	$(BIN)/steadyrl diagnose steadyrl/StateSweep-v0 --num-envs 64 --n-steps 16 --out report

test: $(VENV)/.dev  ## the tests and the examples in the documentation; those that take long: PYTEST_ARGS='-m slow'
	$(BIN)/pytest -n 2 $(PYTEST_ARGS)
	$(if $(filter-out -m slow,$(PYTEST_ARGS)),@echo "Without the tests of JAX: make testjax",$(MAKE) --no-print-directory testjax)

testjax: $(JAX_VENV)/.dev  ## the tests of what is built on JAX, which `make test` runs last
	cd tests_jax && ../$(JAX_BIN)/python -m pytest -c pytest.ini -n 2 $(PYTEST_ARGS) . ../src/steadyrl/integrations/jax

check: lint types test  ## lint, types and tests; continuous integration runs the slow tests too

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

format: $(VENV)/.dev  ## rewrite the code as the linter wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs  ## the documentation as a site, in docs/build/index.html
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/build

bench: $(VENV)/.dev  ## benchmarks against other libraries (about an hour; training is apart: benchmarks/training.py)
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/exact.py
	$(BIN)/python benchmarks/rollouts.py
	$(BIN)/python benchmarks/diagnosis.py
	$(BIN)/python benchmarks/wrappers.py
	$(BIN)/python benchmarks/league.py

fuzz: $(VENV)/.dev  ## attack files, calls, runs, texts and environments (half an hour), and write docs/promises.md again
	$(BIN)/python fuzz/flips.py --record
	$(BIN)/python fuzz/contents.py --record
	$(BIN)/python fuzz/calls.py --record
	$(BIN)/python fuzz/strings.py --record
	$(BIN)/python fuzz/environments.py --record
	$(BIN)/python fuzz/signals.py --record
	$(BIN)/python fuzz/page.py

SCALE ?= whole
study: $(VENV)/.dev $(if $(filter whole,$(SCALE)),$(JAX_VENV)/.dev)  ## the study of learning, row by row (hours; stop and go on at will); SCALE=quick tests its machinery
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/learning/study.py --scale $(SCALE)
	$(BIN)/python benchmarks/learning/mechanism.py $(if $(filter quick,$(SCALE)),--quick)
ifeq ($(SCALE),whole)
	$(JAX_BIN)/python benchmarks/learning/parallel.py
	$(BIN)/python benchmarks/learning/analysis.py
endif

clean:  ## remove the virtual environments
	rm -rf $(VENV) $(JAX_VENV) .venv-peers

$(BIN)/python:
	@echo "Making a virtual environment in $(VENV) (once) ..."
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing steadyrl with its plots into $(VENV) (once, about a minute) ..."
	$(PIP) --editable '.[report,diagnose]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing steadyrl and its test tools into $(VENV) (once, a few minutes) ..."
# PyTorch first, by itself and pinned: what needs it (Stable-Baselines3) then finds it there and does not go for the newest,
# and every machine tests with the same one.
	$(PIP) 'torch==$(TORCH)'
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "Installing steadyrl and what builds its documentation into $(VENV) (once, a minute or two) ..."
	$(PIP) --editable '.[docs]'
	@touch $@

$(JAX_BIN)/python:
	@echo "Making a virtual environment for JAX in $(JAX_VENV) (once) ..."
	$(PYTHON) -m venv $(JAX_VENV)

# Pinned: brax's trainers need jax below 0.10, gymnax needs gymnasium below 1.4 and six, which it does not say.
$(JAX_VENV)/.dev: pyproject.toml | $(JAX_BIN)/python
	@echo "Installing JAX, gymnax, brax, MuJoCo Playground and jumanji into $(JAX_VENV) (once, a few minutes) ..."
	$(JAX_BIN)/pip --disable-pip-version-check install --quiet --editable '.[testjax]'
	@touch $@
