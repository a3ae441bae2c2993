.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
DATA_DIR ?= $(or $(SPILLBOX_DATA_DIR),.spillbox)
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help setup demo example test check bench load fuzz serve images bundle lock clean

help: ## Show what there is to make
	@echo "Spillbox: sandboxed Python runs and exact office documents for AI agents."
	@echo
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter, DATA_DIR=dir where workspaces are kept."

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml scripts/setup.sh
	PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/setup.sh
	@touch $(STAMP)

setup: $(STAMP) ## Install the service and build what guest scripts may use
	@$(RUN) -m api setup --data-dir "$(DATA_DIR)"

demo: setup ## Do the main job on real data and show the documents
	@$(RUN) scripts/demo.py --data-dir "$(DATA_DIR)"

example: setup ## Count what a model writes for 321 rows, and for 13 long texts, with Spillbox and without
	@$(RUN) scripts/example.py --data-dir "$(DATA_DIR)"
	@echo
	@$(RUN) scripts/replay.py --data-dir "$(DATA_DIR)"

test: setup ## Run all tests
	@PYTHON="$(PYTHON)" sh scripts/others.sh
	@SPILLBOX_DATA_DIR="$(DATA_DIR)" $(RUN) -m pytest

check: $(STAMP) ## Run the linter, the formatter's check and the type checker
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

bench: setup ## Measure runs side by side with a bare interpreter and Docker
	@$(RUN) scripts/bench.py --data-dir "$(DATA_DIR)" --json docs/bench.json --chart docs/bench.svg --readme README.md

load: setup ## An hour's mixed load of four tenants, the service killed in the middle (SECONDS=60 for less)
	@$(RUN) scripts/load.py --data-dir "$(DATA_DIR)" --seconds "$(or $(SECONDS),3600)"

fuzz: setup ## Send what the OpenAPI document allows and forbids for 10 minutes, and look for answers that it does not allow
	@PYTHON="$(PYTHON)" sh scripts/others.sh
	@$(RUN) scripts/fuzz.py --data-dir "$(DATA_DIR)" --seconds "$(or $(SECONDS),600)"

serve: setup ## Start the HTTP service on http://127.0.0.1:8750
	@$(RUN) -m api serve --data-dir "$(DATA_DIR)"

images: $(STAMP) ## Build the images spillbox-runtime and spillbox (needs Docker, and mmdebstrap for their base)
	@sh scripts/images.sh

bundle: $(STAMP) ## Make one archive that installs without a network; with the images, or IMAGES=no
	@IMAGES="$(IMAGES)" sh scripts/bundle.sh

lock: ## Lock the packages anew, with hashes (needs uv)
	sh scripts/lock.sh

clean: ## Remove what was installed and built; the data folder stays, with all workspaces, records and keys
	rm -rf $(VENV) "$(DATA_DIR)/guest-root" build dist tests/node/node_modules tests/node/.installed tests/clients/.venv tests/clients/.installed tests/fuzz/.venv tests/fuzz/.installed
