# Three targets for newcomers: `make run` shows the tool at work, `make check` tells in a minute whether a change is sound,
# `make test` checks everything. All set up what they need, in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PRESETS := fmnist svhn cifar10 shakespeare
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run lint check test faults attack fuzz format docs site screenshots release-check bench constraints clean

run: $(VENV)/run-ready
	$(BIN)/gdpfed compare --methods fedavg,dp-fedavg,gdpfed+,auto --out gdpfed-results/demonstration
	@echo
	@echo "Try next:"
	@echo "  $(BIN)/gdpfed plan 500@0.8,300@2,200@5 --method pooled --rounds 100 --participation 0.05 --out plan.toml"
	@echo "  $(BIN)/gdpfed train --auto"
	@echo "  $(BIN)/gdpfed show gdpfed-results/demonstration runs"

lint: $(VENV)/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Without what needs a browser, processes of its own, or more than a few seconds.
check: lint
	OMP_NUM_THREADS=1 GDPFED_CACHE=off $(BIN)/pytest -n 2 -m 'not (slow or browser or processes or training)'

test: lint
	tools/chromium.sh
	OMP_NUM_THREADS=1 GDPFED_CACHE=off $(BIN)/pytest -n 2 --dist loadgroup

# An hour of killed processes, for both kinds of plans; prints tables.
faults: $(VENV)/test-ready
	OMP_NUM_THREADS=1 GDPFED_CACHE=off $(BIN)/python tools/faults.py --record benchmarks/results/faults.json
	OMP_NUM_THREADS=1 GDPFED_CACHE=off $(BIN)/python tools/faults.py --against server --record benchmarks/results/faults-server.json
	OMP_NUM_THREADS=1 GDPFED_CACHE=off $(BIN)/pytest -m slow tests/flower/test_real_up.py tests/flower/test_real_walk.py

# A quarter of an hour of a malicious server against large cohorts.
attack: $(VENV)/test-ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attacks.malicious_server --strategies 1000 --cohorts 150,300

# A quarter of an hour of bad inputs over all commands and public calls.
fuzz: $(VENV)/test-ready
	$(BIN)/python -m tests.fuzz.bad_inputs --inputs 10000 --record benchmarks/results/fuzz.json

format: $(VENV)/test-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/test-ready
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/flow_picture.py
	$(BIN)/gdpfed reproduce sampling --picture docs/img/sampling.png > /dev/null
	$(BIN)/gdpfed plan compare $(PRESETS) --plot docs/img/plans.png > /dev/null
	$(BIN)/gdpfed plan frontier fmnist --method pooled --plot docs/img/frontier.png > /dev/null

# The documentation as a site, site/index.html; a warning is an error.
site: $(VENV)/test-ready
	$(BIN)/python docs/build_site.py

# What a release is checked by: wheel and sdist, alone in empty environments, with the oldest and the newest packages.
release-check: $(VENV)/test-ready
	TOOLS=$(VENV) tools/release_check.sh

# Pictures of `gdpfed serve`, with the demonstration's runs; needs Chromium.
screenshots: $(VENV)/test-ready
	tools/chromium.sh
	$(BIN)/python tools/screenshots.py .

bench: $(VENV)/test-ready
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/planning.py

constraints: $(VENV)/test-ready
	{ grep '^#' constraints.txt; $(BIN)/python -m pip freeze --exclude gdpfed | sed 's/+cpu//'; } > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) build dist site gdpfed-results runs

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("gdpfed needs Python 3.11 or later: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[plots,torch]'
	@touch $@

$(VENV)/test-ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@
