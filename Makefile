# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# libs/accel is built by cargo, where it is there: see deploy/accel.py. The operator runs in Kubernetes
# only, so `make run` does not install it.
RUNTIME := $(filter-out libs/accel,$(patsubst %/pyproject.toml,%,$(wildcard libs/*/pyproject.toml services/*/pyproject.toml)))
MEMBERS := $(RUNTIME) operator tests/peers tests/support
SOURCES := conftest.py deploy libs operator services spark tests bench docs

# Mounts and namespaces need root. PATH is given again, because sudo replaces it.
AS_ROOT = $(if $(filter-out 0,$(shell id -u)),sudo -E env "PATH=$$PATH")

# Without bytecode, each start of a program compiles all that it imports: 3 s instead of 1 s with pyspark and pandas.
unexport PYTHONDONTWRITEBYTECODE

# The tests of a file run one after another, those of different files side by side. Workers begin with
# the files that have most tests; IN_ORDER is for tests whose number says little about their time, and
# for those in random order. SPREAD is for tests that share nothing: idle workers take tests of any file.
IS_PARALLEL = $(filter-out 1,$(WORKERS))
PARALLEL = $(if $(IS_PARALLEL),--numprocesses=$(WORKERS) --dist=loadfile)
IN_ORDER = $(PARALLEL) $(if $(IS_PARALLEL),--no-loadscope-reorder)
SPREAD = $(if $(IS_PARALLEL),--numprocesses=$(WORKERS) --dist=worksteal)
CORES = $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Both sets share $(VENV). The runtime set is only ever added to it, so that `make run` never removes
# the developers' tools, and nothing vanishes under a suite that runs from it; the developers' lock
# holds the runtime set with the same versions.
#
# `.unfinished` is there from the start of an installation to its end. An environment with it was
# interrupted, so it is replaced: pip takes a half-copied package for an installed one. SIGINT has its
# default action while the environment is created, because venv would print a traceback at Ctrl-C.
define create_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "CometMQ needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; }
	@! test -e $(1) || { test ! -e $(1)/.unfinished && $(1)/bin/python -m pip --version >/dev/null 2>&1; } || \
		{ echo "Replacing $(1): its installation was not finished"; rm -rf $(1); }
	@mkdir -p $(1) && touch $(1)/.unfinished
	@test -x $(1)/bin/python || $(PYTHON) -c 'import signal, sys, venv; \
		signal.signal(signal.SIGINT, signal.SIG_DFL); venv.main(sys.argv[1:])' $(1)
endef

define finish_venv
	@touch $(2)
	@rm -f $(1)/.unfinished
endef

# Every set of an interrupted environment is installed again.
UNFINISHED := $(wildcard $(VENV)/.unfinished)
$(VENV)/.unfinished: ;

$(VENV)/.runtime: requirements-runtime.lock $(RUNTIME:%=%/pyproject.toml) $(UNFINISHED)
	@echo "Installing what CometMQ needs to run into $(VENV): less than 40 MB, about ten seconds"
	$(call create_venv,$(VENV))
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes --requirement requirements-runtime.lock
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation $(RUNTIME:%=-e ./%)
	$(call finish_venv,$(VENV),$@)

$(VENV)/.ready: requirements.lock $(MEMBERS:%=%/pyproject.toml) $(UNFINISHED)
	@echo "Installing the developers' tools into $(VENV): 490 MB in all, some minutes"
	$(call create_venv,$(VENV))
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet 'uv>=0.9'
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes --requirement requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps $(MEMBERS:%=-e ./%)
	@$(BIN)/python -m compileall -q $(wildcard $(MEMBERS:%=./%/src))
	$(call finish_venv,$(VENV),$(VENV)/.runtime $@)

.PHONY: setup
setup: $(VENV)/.ready ## Install the developers' tools too, from the lock (ACCEL=no: without the native path, ACCEL=yes: not without it)
ifneq ($(ACCEL),no)
	@$(BIN)/python deploy/accel.py install
endif

.PHONY: hooks
hooks: setup ## Install the git hooks (pre-commit)
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type commit-msg

# Builds the native path where cargo can, once, or keeps an installed wheel.
TO_RUN = $(if $(filter no,$(ACCEL)),:,$(BIN)/python deploy/accel.py install --to-run)

.PHONY: run
run: $(VENV)/.runtime ## Start a whole suite in the foreground; Ctrl-C stops it (ACCEL=no: do not build the native path)
	@$(TO_RUN)
	@exec $(BIN)/cometmq standalone --console $(ARGS)

.PHONY: demo
demo: $(VENV)/.runtime ## Send the Python standard library through a broker and compare it (ARGS="--timeout S")
	@$(TO_RUN)
	@PYTHONPATH=tests/peers/src:tests/support/src $(BIN)/python -m cometmq.peers.demo $(ARGS)

.PHONY: ha-demo
ha-demo: setup ## Kill, freeze and switch over the masters of a broker group under load; a minute after setup
	@$(BIN)/python -m cometmq.peers.ha_demo

# Each worker collects all tests, which takes 20 s of processor time without bytecode and 5 s with it;
# in a fresh clone, two processes write it before the workers start.
COLLECT := $(BIN)/pytest --collect-only -qq -p no:cacheprovider
COMPILE_TESTS = @$(if $(IS_PARALLEL),test -d tests/tidy/__pycache__ || \
	{ $(COLLECT) libs >/dev/null & $(COLLECT) operator services tests >/dev/null; wait; },:)

.PHONY: test
# Most tests wait for programs and connections, so two share a core.
test: WORKERS ?= $(shell expr 2 \* $(CORES))
test: setup ## Unit, property, golden and integration tests, two at a time on each core (WORKERS=1: one by one; SEED=n: in this order; MARK=...: of these markers)
	@echo "Running more than 15,000 tests in random order, with $(WORKERS) at a time (WORKERS=n). They use"
	@echo "loopback, free ports and the folder for temporary files only. Ctrl-C ends them; 'make help' lists parts."
	$(BIN)/python deploy/accel.py test
	$(COMPILE_TESTS)
	$(BIN)/pytest -q $(if $(MARK),-m "$(MARK)") $(IN_ORDER) $(if $(SEED),--order-seed=$(SEED))

.PHONY: packages-test
packages-test: setup ## Wheels, the files of a release, the Debian package, `make setup` and `make run` in clones (WORKERS=n)
	$(BIN)/pytest -q tests/packages $(PARALLEL)

.PHONY: test-all
test-all: test packages-test crash sim ha-test monitoring-test fuzz load compat spark-test-all ## Everything, long forms included

.PHONY: crash
crash: setup ## Kill -9, torn tails, damaged bytes, full disks: at least 200 kills (RUNS=n WORKERS=n)
	$(BIN)/pytest -q tests/crash $(SPREAD) --kills=$(or $(RUNS),200) --timeout=5400

.PHONY: ha-test
ha-test: setup ## Broker groups under load that lose masters, networks and disks: 18 faults (RUNS=n SEED=n DECK=failovers|switchovers); as root
	tests/peers/install java
	$(AS_ROOT) unshare --mount $(BIN)/pytest -q tests/ha -p no:cacheprovider --faults=$(or $(RUNS),18) --fault-seed=$(or $(SEED),1) --fault-deck=$(or $(DECK),all) --timeout=18000

# Go builds Kubernetes and helm for the tests.
WITH_GO = deploy/install-go.sh $(VENV) && export PATH="$(CURDIR)/$(VENV)/go/bin:$$PATH" &&

.PHONY: operator-test
operator-test: setup ## The operator against a Kubernetes API without nodes (the first run builds it; SHORT=yes: without 50 groups)
	$(WITH_GO) $(BIN)/pytest -q tests/operator --timeout=3600 $(if $(SHORT),--ignore=tests/operator/test_many_groups.py)

.PHONY: ha-model
ha-model: setup ## Every interleaving of elections, crashes and late writes in small groups (STATES=n WALKS=n)
	$(BIN)/python -m cometmq.testing.ha.check --states $(or $(STATES),1000000) --walks $(or $(WALKS),20000)

.PHONY: sim
sim: setup ## Whole broker groups in simulated time: faults, promises, dropped rules (SEEDS=N or FIRST:END WORKERS=n)
	$(BIN)/python -m tests.sim.run --seeds $(or $(SEEDS),500)
	$(BIN)/pytest -q tests/sim $(SPREAD) --timeout=1800

.PHONY: fuzz
fuzz: setup ## Mutated input through the decoders and to live servers, prints the slowest; more generated cases (CASES=no: without; WORKERS=n)
	$(BIN)/python -m tests.fuzz.run --inputs $(or $(INPUTS),5000000) --frames $(or $(FRAMES),1000000)
	$(BIN)/python deploy/accel.py fuzz $(or $(INPUTS),100000000)
	$(if $(filter no,$(CASES)),,$(BIN)/pytest -q -m "long or hypothesis" --hypothesis-profile=long $(PARALLEL))

.PHONY: prometheus
prometheus: ## Install Debian's Prometheus, if there is none
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null; }

.PHONY: monitoring
monitoring: setup prometheus ## Prometheus with our alerts beside `make run` (ARGS="--target HOST:PORT --listen HOST:PORT")
	@$(BIN)/python deploy/monitor.py $(ARGS)

.PHONY: monitoring-test
monitoring-test: setup prometheus ## Unit tests of the alerts; a Prometheus runs the query of every panel; under two minutes
	$(BIN)/pytest -q tests/prometheus --timeout=900

.PHONY: dashboards
dashboards: setup ## Generate the Grafana dashboards
	$(BIN)/python deploy/dashboards.py

.PHONY: load
load: setup ## Members that come and go, crowds, floods, silent peers; tests that measure (ARGS="churn --churn-seconds 600 --java 2")
	$(BIN)/pytest -q -m load
	$(BIN)/python -m tests.load.run $(ARGS)

.PHONY: compat
compat: setup ## Official Java, C++ and JavaScript clients, mqadmin, a Java broker (WORKERS=n)
	tests/peers/install
	$(BIN)/pytest -q tests/compat $(IN_ORDER) -m "$(or $(MARK),compat)" --timeout=900

.PHONY: bench
bench: setup ## Side by side with Apache RocketMQ 4.9.4, sends also with Redis and NATS
	tests/peers/install servers
	$(BIN)/python bench/run.py $(ARGS)

.PHONY: bench-clients
bench-clients: setup ## Python clients beside each other: rates and processor time
	tests/peers/install cpp grpc proxy
	$(BIN)/python bench/compare_clients.py $(ARGS)

.PHONY: bench-test
bench-test: setup ## Does the benchmark itself measure what it says?
	tests/peers/install servers
	$(BIN)/pytest -q bench/tests

.PHONY: bench-micro
bench-micro: setup ## Time the hot modules
	for file in bench/micro/bench_*.py; do $(BIN)/python $$file || exit 1; done

.PHONY: profile
profile: setup ## Where the time of a send goes
	$(BIN)/python bench/profile_sends.py $(ARGS)

SPARK_BIN := spark/.venv/bin

spark/.venv/.ready: $(VENV)/.ready spark/requirements.lock spark/pyproject.toml
	@command -v java >/dev/null || { apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless >/dev/null; }
	$(call create_venv,spark/.venv)
	@$(BIN)/uv pip sync --quiet --python $(SPARK_BIN)/python --compile-bytecode --require-hashes spark/requirements.lock
	@$(BIN)/uv pip install --quiet --python $(SPARK_BIN)/python --no-deps $(MEMBERS:%=-e ./%) -e ./spark
	$(call finish_venv,spark/.venv,$@)

.PHONY: spark-setup
spark-setup: spark/.venv/.ready ## Create the environment of the Spark package

.PHONY: chromium
chromium: ## Install Debian's Chromium, if there is none
	@command -v chromium >/dev/null || \
		{ $(AS_ROOT) apt-get update -qq && $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; }

.PHONY: npm
npm: ## Install Debian's npm, if there is none
	@command -v npm >/dev/null || \
		{ $(AS_ROOT) apt-get update -qq && $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm >/dev/null; }

.PHONY: console-test
console-test: setup chromium npm ## The console in a real browser: every page with axe, light and dark, wide and phone; two minutes
	$(BIN)/pytest -q tests/console --timeout=600

.PHONY: spark-test
spark-test: spark-setup chromium ## Data source and lag jobs on a local Spark
	cd spark && .venv/bin/pytest -q -m "$(or $(MARK),not slow)"

.PHONY: spark-test-all
spark-test-all: spark-test ## Spark clusters, killed executors, a Java broker
	cd spark && .venv/bin/pytest -q -m slow --timeout=1800

.PHONY: spark-types
spark-types: spark-setup ## Type check of the Spark package, strict
	cd spark && .venv/bin/mypy

.PHONY: spark-bench
spark-bench: spark-setup ## Rows a second, and the time of a report
	$(SPARK_BIN)/python bench/spark/run.py $(ARGS)

.PHONY: lag-demo
lag-demo: spark-setup ## Seven consumer groups with different problems, and a lag report of them
	@PYTHONPATH=spark/examples $(SPARK_BIN)/python -m lag_demo $(ARGS)

.PHONY: spark-lock
spark-lock: setup ## Resolve the dependencies of the Spark package again
	cd spark && ../$(BIN)/uv lock --upgrade --quiet
	cd spark && ../$(BIN)/uv export --quiet --all-groups --no-emit-project --no-emit-local --no-header --format requirements-txt > requirements.lock
	cd spark && ../$(BIN)/uv export --quiet --frozen --no-dev --no-emit-project --no-emit-local --no-header --format requirements-txt > requirements-runtime.lock

.PHONY: fmt
fmt: setup ## Format and fix
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

.PHONY: lint
lint: setup ## Style and spelling
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/codespell --toml pyproject.toml $(SOURCES) README.md ARCHITECTURE.md CONTRIBUTING.md ROADMAP.md
	$(BIN)/python deploy/accel.py lint

.PHONY: types
types: setup ## Type check, strict
	$(BIN)/mypy

.PHONY: imports
imports: setup ## Import contracts between the layers
	PYTHONPATH=spark/src:libs/accel/src $(BIN)/lint-imports

.PHONY: mass
mass: setup ## Lines, files, tokens and definitions; lowers their limits to what is there
	$(BIN)/python -m tests.tidy.mass --write

.PHONY: generate
generate: setup ## Generate what is derived from the code: reference pages, CRDs, schemas, chart READMEs
	PYTHONPATH=spark/src $(BIN)/python docs/generate.py

$(VENV)/.docs: $(VENV)/.ready docs/site/requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement docs/site/requirements.lock
	@touch $@

.PHONY: docs
docs: generate $(VENV)/.docs ## Build the documentation into dist/site, searchable without a network (REPOSITORY=https://... for links)
	$(BIN)/python docs/site/build.py $(if $(REPOSITORY),--repository $(REPOSITORY))
	@echo "Open dist/site/index.html"

.PHONY: protos
protos: setup ## Generate the code of the control API from control.proto, and service.proto from the orders
	$(BIN)/python -m grpc_tools.protoc -I libs/group/src --python_out=libs/group/src --pyi_out=libs/group/src libs/group/src/cometmq/control/v1/control.proto
	$(BIN)/python -m cometmq.control.service_proto >libs/group/src/cometmq/control/v1/service.proto

.PHONY: lock
lock: setup ## Resolve the dependencies again
	$(BIN)/uv lock --upgrade --quiet
	$(BIN)/uv export --quiet --frozen --all-packages --all-groups --no-group docs --no-emit-workspace --no-header --format requirements-txt > requirements.lock
	$(BIN)/uv export --quiet --frozen --only-group run --no-emit-workspace --no-header --format requirements-txt > requirements-runtime.lock
	$(BIN)/uv export --quiet --frozen --only-group docs --no-emit-workspace --no-header --format requirements-txt > docs/site/requirements.lock

.PHONY: wheels
wheels: setup ## Build a wheel of each member into dist/ (REPOSITORY=https://... for project URLs)
	$(BIN)/python deploy/wheels.py build --out dist $(if $(REPOSITORY),--repository $(REPOSITORY))

.PHONY: release
release: setup $(if $(IMAGES),$(VENV)/.deploy) ## Make the files of a release into dist/release, reproducibly (VERSION=0.2.0 NATIVE="manylinux-x86_64 ..." FINAL=yes IMAGES=yes)
	PYTHONPATH=deploy $(BIN)/python deploy/release/release.py make $(VERSION) $(if $(NATIVE),--native $(NATIVE)) $(if $(FINAL),--final) \
		$(if $(IMAGES),--images --base-image $(BASE_IMAGE) --network $(BUILD_NETWORK))

.PHONY: release-ready
release-ready: setup ## Prepare the commit of a release: versions and the date in CHANGELOG.md (VERSION=0.2.0)
	PYTHONPATH=deploy $(BIN)/python deploy/release/release.py ready $(VERSION)

$(VENV)/.deploy: $(VENV)/.ready deploy/requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement deploy/requirements.lock
	@touch $@

BASE_IMAGE ?= python:3.11-slim-bookworm
BUILD_NETWORK ?= none

.PHONY: base-image
base-image: ## Make the base image BASE_IMAGE=name from Debian packages (PACKAGES="..."), without an image registry
	deploy/images/base-image.sh $(BASE_IMAGE) $(PACKAGES)

.PHONY: images
images: setup $(VENV)/.deploy ## Build the image of the suite (TARGETS="suite operator spark" BASE_IMAGE=name PREFIX=registry/)
	@$(BIN)/python deploy/images/build_images.py $(or $(TARGETS),suite) --base-image $(BASE_IMAGE) --network $(BUILD_NETWORK) \
		$(if $(SPARK_BASE_IMAGE),--spark-base-image $(SPARK_BASE_IMAGE)) $(if $(PREFIX),--prefix $(PREFIX)) $(if $(TAG),--tag $(TAG))

.PHONY: images-test
images-test: setup $(VENV)/.deploy ## Build the image twice, compare, stop it under load, run the chart's pods; needs Docker
	@command -v etcd >/dev/null || { apt-get update -qq && apt-get install -y -qq etcd-server >/dev/null; }
	$(WITH_GO) $(BIN)/pytest -q tests/images --timeout=1200 --base-image=$(BASE_IMAGE) --build-network=$(BUILD_NETWORK) \
		--helm=$$(deploy/helm/install-helm.sh) $(if $(IMAGE),--image=$(IMAGE))

.PHONY: charts-test
charts-test: setup $(VENV)/.deploy ## Render the Helm charts, check all objects and wrong values; the first run builds helm
	$(WITH_GO) $(BIN)/pytest -q tests/charts --timeout=300 --helm=$$(deploy/helm/install-helm.sh)

.PHONY: e2e
e2e: setup $(VENV)/.deploy ## Charts, operator and failover on a Kubernetes cluster made here, as root, or that of E2E_KUBECONFIG (SHORT=yes KEEP=yes ARGS=...)
	$(WITH_GO) $(if $(E2E_KUBECONFIG),,$(AS_ROOT)) tests/e2e/run.sh $(ARGS)

.PHONY: kubernetes
kubernetes: $(VENV)/.ready ## Build Kubernetes, kind and helm for `make e2e`, which otherwise does it first
	$(WITH_GO) tests/e2e/cluster/cluster.sh build

.PHONY: findings
findings: ## Surprises of public packages, each run again without CometMQ: do they still behave so? (needs Java 17, Maven, Go)
	for file in findings/*-*.sh; do echo "== $$file" && bash $$file || exit 1; done

.PHONY: version
version: setup ## Set the version of every member to that of pyproject.toml (TO=0.2.0 changes both)
	$(BIN)/python deploy/wheels.py version $(TO)

.PHONY: check
check: lint types imports test ## What a change must pass before review

.PHONY: clean
clean: ## Remove the environment and every cache
	rm -rf $(VENV) dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache bench/out bench/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
