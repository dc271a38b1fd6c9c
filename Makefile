# Each target is one line. The environment is .venv; it is made on first use and again when a dependency changes.
PYTHON ?= python3
BIN := .venv/bin

ROUNDS ?= 20

.PHONY: setup generate comparison test test-gpu chaos check fmt size train-tiny

setup: .venv/.stamp  ## environment with everything to run, test and develop

.venv/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv && $(BIN)/pip install -q -c constraints.txt torch && $(BIN)/pip install -q -c constraints.txt -e '.[dev,lm-eval,quant]' && touch $@

generate: setup  ## the bundled model answers bundled problems; answers, statistics, exact match
	$(BIN)/python jobs/generate.py --config examples/word_problems.yaml && $(BIN)/python jobs/evaluate.py --output out/word_problems --answer-column answer --by family

comparison: setup  ## the papers' methods on the bundled model, in one table and one page; hours, goes on where it was stopped
	$(BIN)/python jobs/sweep.py --config examples/comparison.yaml && $(BIN)/python jobs/report.py --output out/comparison --to out/comparison.html --title "Methods compared"

test: setup  ## all tests, on two cores; those that need a GPU skip without one
	$(BIN)/pytest -n 2 --dist loadfile

test-gpu: setup  ## only the tests that need a GPU
	$(BIN)/pytest -m gpu

chaos: setup  ## kill workers, nodes and drivers of ROUNDS jobs at random; the log goes to docs/chaos.md
	CHAOS_ROUNDS=$(ROUNDS) CHAOS_LOG=docs/chaos.md $(BIN)/pytest tests/chaos

check: setup  ## format, lint, types, import rule, file lengths
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/pytest -q tests/test_imports.py && $(MAKE) -s size

fmt: setup  ## format and sort imports
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

size:  ## lines per file; fails past 250 where the docstring gives no reason
	@$(PYTHON) .ci/size.py

train-tiny: setup  ## train the bundled model anew, hours on a CPU; goes on where it was interrupted
	$(BIN)/python -m examples.tiny.train --state train-state --folder examples/tiny-llada
