# python3 and make are all that is needed; every target sets up what it uses.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(STAMP) ## Make .venv with the pinned dependencies and the command holdfast

# A stamp beside the interpreter: an interrupted installation is done again, a finished one is not.
$(STAMP): requirements-dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: lock
lock: ## Compile the pinned and hashed requirement files anew (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q pyproject.toml -o requirements.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q pyproject.toml --group dev -o requirements-dev.txt

.PHONY: lint
lint: $(STAMP) ## Style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: crds
crds: $(STAMP) ## Write manifests/crds from the models
	$(BIN)/holdfast crds --output manifests/crds

.PHONY: control-plane
control-plane: $(STAMP) ## Build the Kubernetes control plane that the tests use, once, into the user's cache
	@$(BIN)/python -m tests.control_plane.build

.PHONY: test
test: $(STAMP) lint control-plane ## Everything: lint, types, layers, drift, unit, the real API server
	$(BIN)/pytest
