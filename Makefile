# python3 and make are all that is needed; every target sets up what it uses.
PYTHON ?= python3
KUBECTL ?= kubectl
DOCKER ?= docker
# The operator asks for the image of its own version unless it is told another.
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' src/holdfast/__init__.py)
IMG ?= holdfast:$(VERSION)
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
	@echo "Installing $$(grep -c '==' requirements-dev.txt) pinned packages and holdfast into $(VENV), once. This takes a minute or two."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Train a small model with two workers on this machine, without Kubernetes
	@$(BIN)/holdfast demo

.PHONY: lock
lock: ## Compile the pinned and hashed requirement files anew (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q pyproject.toml --extra trainer -o requirements.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q --group build -o requirements-build.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q pyproject.toml --group dev -o requirements-dev.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q tests/frameworks/requirements.in -o tests/frameworks/requirements.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q tests/frameworks/tensorflow.in -o tests/frameworks/tensorflow.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q tests/frameworks/tensorboard.in -o tests/frameworks/tensorboard.txt

.PHONY: lint
lint: $(STAMP) ## Style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: crds
crds: $(STAMP) ## Write manifests/crds, the chart's copy of them and docs/fields from the models
	$(BIN)/holdfast crds --output manifests/crds
	$(BIN)/holdfast crds --output charts/holdfast/files/crds
	$(BIN)/python -m holdfast.api.schema.field_docs docs/fields

.PHONY: dashboards
dashboards: $(STAMP) ## Write the dashboards of manifests/monitoring from tools/dashboards.yaml, and the chart's copies
	$(BIN)/python tools/dashboards.py manifests/monitoring/dashboards
	cp manifests/monitoring/rules.yaml manifests/monitoring/dashboards/*.json charts/holdfast/files/monitoring/

.PHONY: run
run: $(STAMP) ## Run the operator here, on the cluster of your kubeconfig
	$(BIN)/holdfast operator

.PHONY: build
build: $(STAMP) ## Build the wheel into dist/
	@rm -rf dist
	$(BIN)/hatchling build -t wheel

.PHONY: install
install: $(STAMP) ## Put the resource definitions on the cluster
	$(BIN)/holdfast crds | $(KUBECTL) apply --server-side -f -

.PHONY: uninstall
uninstall: $(STAMP) ## Take them away, with every object of these kinds
	$(BIN)/holdfast crds | $(KUBECTL) delete --ignore-not-found -f -

.PHONY: docker-build
docker-build: ## Build the operator's image (IMG=…)
	$(DOCKER) build -t $(IMG) .

.PHONY: docker-push
docker-push: ## Push it (IMG=…)
	$(DOCKER) push $(IMG)

.PHONY: deploy
deploy: install ## Run the operator on the cluster (IMG=…)
	$(KUBECTL) kustomize manifests/operator | sed 's|holdfast:$(VERSION)|$(IMG)|g' | $(KUBECTL) apply --server-side -f -

.PHONY: deploy-node
deploy-node: deploy ## Run the agents on the nodes, too (IMG=…)
	$(KUBECTL) kustomize manifests/node | sed 's|holdfast:$(VERSION)|$(IMG)|g' | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy-node
undeploy-node: ## Take the agents away; the operator stays
	$(KUBECTL) delete --ignore-not-found -k manifests/node

.PHONY: undeploy
undeploy: ## Take the operator away; the definitions and their objects stay
	$(KUBECTL) delete --ignore-not-found -k manifests/operator

.PHONY: control-plane
control-plane: $(STAMP) ## Build the Kubernetes control plane that the tests use, once, into the user's cache
	@$(BIN)/python -m tests.control_plane.build

.PHONY: frameworks
frameworks: $(STAMP) ## Install JAX, TensorFlow and TensorBoard into the user's cache, and on Debian as root PyTorch, for the tests
	@$(BIN)/python -m tests.frameworks.provision

.PHONY: stores
stores: $(STAMP) ## Install the object stores that the tests use, once (with npm and Go), and on Debian as root a registry
	@$(BIN)/python -m tests.checkpoints.provision

.PHONY: compute-engine
compute-engine: $(STAMP) ## Fetch Google's description of Compute Engine, which the tests check requests against, once
	@$(BIN)/python -m tests.providers.compute_engine.provision

.PHONY: monitoring
monitoring: $(STAMP) ## Fetch Debian's Prometheus into the user's cache for the tests, once, when root calls it on Debian
	@$(BIN)/python -m tests.monitoring.provision

.PHONY: nodes
nodes: $(STAMP) ## Build what real nodes run, once, into the user's cache, and on Debian as root install what they need
	@$(BIN)/python -m tests.nodes.provision

.PHONY: helm
helm: $(STAMP) ## Build Helm, which the tests try the chart with, once, into the user's cache
	@$(BIN)/python -m tests.charts.build

.PHONY: test-nodes
test-nodes: $(STAMP) control-plane nodes ## What needs real kubelets and containers
	$(BIN)/pytest tests/nodes

# What is fetched comes while Go builds what is built; each of them waits for the package managers by itself.
.PHONY: provision
provision: $(STAMP) ## All that the tests use: control plane, Helm, real nodes, frameworks, object stores, descriptions, Prometheus
	@$(MAKE) --no-print-directory --jobs=3 go-programs frameworks stores compute-engine monitoring

.PHONY: go-programs
go-programs: $(STAMP)
	@$(BIN)/python -m tests.control_plane.build
	@$(BIN)/python -m tests.charts.build
	@$(BIN)/python -m tests.nodes.provision

# A file is tried by one process, the longest first. Real nodes and the chaos of hundreds of jobs have the machine to
# themselves.
SHARED := --dist loadfile --no-loadscope-reorder
LARGE := tests/chaos tests/nodes
OTHERS := $(SHARED) $(LARGE:%=--ignore %)

.PHONY: test
test: $(STAMP) lint provision ## Everything of every run: lint, types, layers, drift, unit, the real API server, real nodes
	$(BIN)/pytest -n 4 -m "not long" $(OTHERS)
	$(BIN)/pytest -n 2 -m "not long" $(SHARED) $(LARGE)

.PHONY: test-long
test-long: $(STAMP) provision ## What `make test` leaves out; run before a large change is called done
	$(BIN)/pytest -n 4 -m long $(OTHERS)
	$(BIN)/pytest -m long $(LARGE)

# What one process can try by itself: a minute or two. Of the kinds with machines it is what decides, not what joins.
FAST := tests/api tests/checkpointbackup tests/checkpoints/images tests/cluster tests/gpuworkload tests/node tests/pods \
	tests/runtime tests/scheduling tests/test_peers.py tests/test_times.py \
	tests/trainingjob/decide tests/trainingjob/objects tests/trainingjob/reports \
	tests/spotinstancejob --ignore tests/spotinstancejob/controller \
	tests/machines/phases $(patsubst %,tests/machines/test_%.py,decision kubeadm lifetimes machine_spec metadata)

.PHONY: test-fast
test-fast: $(STAMP) ## What needs no server: models, decisions, objects, client, runtime
	$(BIN)/pytest -q -n 2 -m "not server and not long" $(FAST)

.PHONY: search
search: $(STAMP) control-plane ## The properties with cases that no run has tried
	$(BIN)/pytest -n 2 -m hypothesis --hypothesis-profile=search

.PHONY: mutants
mutants: $(STAMP) ## Break the embedded engine in one place after the other: the contract must notice each time
	$(BIN)/python -m tests.contract.mutants

.PHONY: bench
bench: $(STAMP) control-plane ## Measure: placements; GPUWorkloads; restarts; 1,000 TrainingJobs of 4 workers at once; 400 spot machines; a checkpoint of 2 GiB; an image of 4 GiB; how long a container stands still
	$(BIN)/python -m bench.placement
	$(BIN)/python -m bench.gpuworkloads
	$(BIN)/python -m bench.restart
	$(BIN)/python -m bench.many_jobs
	$(BIN)/python -m bench.requests
	$(BIN)/python -m bench.spot
	$(BIN)/python -m bench.checkpoints
	$(BIN)/python -m bench.images
	$(BIN)/python -m bench.freezes
