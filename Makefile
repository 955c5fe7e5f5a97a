# Each target is one line that calls the real tool; tools/bootstrap makes what it needs, once, and says so on stderr.
BIN := .venv/bin
MINUTES ?= 10
SEED ?= 1
# Processes that run the suite; each test file is run by one of them, in its order.
WORKERS ?= 2
# pip, and pip inside build environments, never ask for input and never nag.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help demo up test lint spec faults bench bench-json lowest newest clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' Makefile

# The stamps lie inside the environments, so that an environment removed by hand is made again.
.venv/.run .venv/.dev .venv-lowest/.lowest .venv-newest/.newest: pyproject.toml constraints.txt constraints-lowest.txt tools/bootstrap
	@tools/bootstrap $(patsubst .%,%,$(notdir $@))

demo: .venv/.run ## Agents lose processes and a worker to SIGKILL and carry on: the main job, with its report
	@$(BIN)/ares demo

up: .venv/.run ## A small fleet to play with; Ctrl-C ends it (with options: .venv/bin/ares up --help)
	@$(BIN)/ares up

test: .venv/.dev ## The whole suite, in two processes (WORKERS=1: in one)
	@tools/bootstrap redis && $(BIN)/pytest $(if $(filter-out 1,$(WORKERS)),-n $(WORKERS) --dist loadfile)

lint: .venv/.dev ## Format, lint, types, import contracts
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/pyright && $(BIN)/lint-imports --no-logo

spec: .venv/.dev ## How many of the 150 numbered statements the suite shows
	@tools/bootstrap redis && $(BIN)/python -m tools.marked spec

faults: .venv/.dev ## How many of the 48 known pains the suite shows cured
	@tools/bootstrap redis && FAULT_KILLS=200 FAULT_VISIBILITY=5 $(BIN)/python -m tools.marked pain

bench: .venv/.dev ## Measure speed and memory
	@tools/bootstrap redis && $(BIN)/python -m bench

bench-json: .venv/.dev ## A short run, one line of JSON (use make -s)
	@tools/bootstrap redis && $(BIN)/python -m bench --json

lowest: .venv-lowest/.lowest ## Unit and contract tests with the lowest supported versions
	@tools/bootstrap redis && tools/with-old-redis .venv-lowest .venv-lowest/bin/pytest tests/unit tests/contract

newest: .venv-newest/.newest ## Unit and contract tests with the newest supported Python
	@tools/bootstrap redis && .venv-newest/bin/pytest tests/unit tests/contract

clean: ## Remove everything that make made
	rm -rf .venv .venv-lowest .venv-newest build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
