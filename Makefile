# Shortcuts for the yard command, and for work on trainyard. Every target is one line: the work is done in tools/ and
# tests/.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

# Set these on make's command line. A variable of the same name in the environment has no effect.
CELL   = overlays/cpu/llama-tiny
HW     = cpu
MODEL  = llama-tiny
RUN    = $(HW)-$(MODEL)-train
PROMPT = def
SOURCE = python-stdlib
CLUSTER = example
JOB    =
IMAGE  = trainer-cpu
LEVEL  = standard
TO     =
DEV    =
KIND   = pytorchjob
ON     =
ARGS   =
# The first supported Python. The one in .venv comes first because it starts faster than a wrapper such as pyenv's.
PYTHON = $(or $(shell for name in .venv/bin/python python3 python3.14 python3.13 python3.12 python3.11; do $$name -ISc 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo $$name && break; done),$(error Python 3.11 to 3.14 is needed, and PATH has none))
SETUP  = $(PYTHON) -IS tools/bootstrap.py
QUIET  = $(if $(filter $@,$(MAKECMDGOALS)),,--quiet)
PYTEST = .venv/bin/python -m pytest --reruns 1
COMPILE = .venv/bin/uv pip compile --quiet --cache-dir .cache/uv --universal --python-version 3.11 --generate-hashes --no-header
TRAIN  = pyproject.toml --extra train

# A prompt may contain any character, so it is passed in the environment and not through the shell's quoting.
export PROMPT
# These would redirect an import or an installation.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_TARGET PIP_PREFIX UV_SYSTEM_PYTHON

.PHONY: help setup setup-track setup-dev demo train finetune sample run data render wiring matrix-sync matrix-check precompile job job-status why image image-overlay image-test push cluster down platform cluster-run preflight schemas diff test test-smoke test-long test-long-all test-security audit test-cluster cluster-programs test-cluster-all test-flux test-storage test-monitoring test-browser test-track test-bench faults faults-all test-images test-neuron bench bench-all bench-gpu bench-packages bench-restart prove-bench bench-data plan-error lint format types docs docs-serve ci lock lock-neuron clean purge

##@ Start here
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET [VARIABLE=value]"} /^##@ / {print "\n" substr($$0, 5)} /^[a-z0-9%-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## Make .venv from requirements.lock; the other targets do this when it is needed
	@$(SETUP) requirements.lock $(QUIET)

setup-track: ## Also install the clients of MLflow, Weights & Biases and trackio, for runs on this machine that are tracked
	@$(SETUP) requirements-track.lock $(QUIET)

train: setup ## Train overlays/cpu/llama-tiny on this machine; run again to continue (ARGS="--set train.steps=400")
	@exec .venv/bin/yard run overlays/cpu/llama-tiny $(ARGS)

finetune: setup ## Fine-tune the model of `make train` on Python's own help texts; run again to continue
	@exec .venv/bin/yard run overlays/cpu/llama-tiny-lora $(ARGS)

sample: setup ## Write text with a run's checkpoint (RUN=cpu-llama-tiny-train PROMPT="class Queue")
	@exec .venv/bin/yard sample $(RUN) --prompt "$$PROMPT" $(ARGS)

data: setup ## Prepare text as token shards (SOURCE="corpus/*.jsonl.gz" ARGS="--vocab-size 32000")
	@exec .venv/bin/yard data prepare $(SOURCE) $(ARGS)

demo: setup ## Train a first cell on the current cluster, or on one that kind makes, and remove it again (ARGS=--yes)
	@exec .venv/bin/yard demo $(ARGS)

##@ Cells
run: setup ## Train any cell on this machine (CELL=overlays/cpu/llama-tiny)
	@exec .venv/bin/yard run $(CELL) $(ARGS)

render: setup ## Print a cell's manifest (CELL=...)
	@exec .venv/bin/yard render $(CELL) $(ARGS)

wiring: setup ## Prove that the pods of a cell train as one job (CELL=...)
	@exec .venv/bin/yard wiring $(CELL) $(ARGS)

preflight: setup ## Check every cell with all rules, without a cluster
	@exec .venv/bin/yard preflight --all $(ARGS)

schemas: setup ## Build the schemas of Kubernetes' and other kinds again, over the network
	@exec .venv/bin/python -m tests.preflight.build_schemas

matrix-sync: setup ## Write the cells of overlays/matrix.yaml
	@exec .venv/bin/yard matrix sync $(ARGS)

matrix-check: setup ## Fail if a cell differs from overlays/matrix.yaml
	@exec .venv/bin/yard matrix check $(ARGS)

diff: setup ## Show what applying a cell would change on the current cluster (CELL=...)
	@exec .venv/bin/yard diff $(CELL) $(ARGS)

##@ Jobs
job: setup ## Submit a cell to the current cluster and follow it to its first step (HW=cpu MODEL=llama-tiny KIND=trainjob; DEV=1 lets `yard job sync` change its code)
	@exec .venv/bin/yard job submit overlays/$(HW)/$(MODEL) $(if $(DEV),--dev )$(if $(filter pytorchjob,$(KIND)),,--feature $(KIND) )$(ARGS)

job-status: setup ## Show a job's pods, step, speed and time left (JOB=name; not needed for the only job)
	@exec .venv/bin/yard job status $(JOB) $(ARGS)

why: setup ## Find out why a job does not train: the cause, its evidence and a fix (JOB=...)
	@exec .venv/bin/yard job why $(JOB) $(ARGS)

job-%: setup ## Run any other yard job command: list, logs, metrics, plot, stop, retry, cp ... (JOB=name ARGS="--rank 0")
	@exec .venv/bin/yard job $* $(JOB) $(ARGS)

precompile: setup ## Compile the graphs of a trn1 cell on the current cluster before it trains (MODEL=bert-large)
	@.venv/bin/yard precompile trn1/$(MODEL) $(ARGS) | kubectl apply --server-side -f -

##@ Images
image: setup ## Build an image with the Docker engine (IMAGE=trainer-cpu ARGS="--tag-from describe")
	@exec .venv/bin/yard image build $(IMAGE) $(ARGS)

image-overlay: setup ## Add the working tree to an image as one layer and push it (ON=registry.example.com/team/trainer-cuda:0.1.0)
	@exec .venv/bin/yard image overlay . --on "$(ON)" --push $(ARGS)

image-test: setup ## Test a built image: imports, permissions, signals, an interrupted training (LEVEL=full)
	@exec .venv/bin/yard image test $(IMAGE) --level $(LEVEL) $(ARGS)

push: setup ## Push a built image, and pin its digest in every cell (TO=registry.example.com/team/trainer-cpu)
	@exec .venv/bin/yard image push $(IMAGE) --to "$(TO)" --pin $(ARGS)

##@ Clusters
cluster: setup ## Create a cluster on AWS with eksctl, or continue creating it (CLUSTER=cpu-demo ARGS=--dry-run)
	@exec .venv/bin/yard cluster create $(CLUSTER) $(ARGS)

down: setup ## Delete what is provably of a cluster, after a list with prices and a question (CLUSTER=cpu-demo)
	@exec .venv/bin/yard cluster down $(CLUSTER) $(ARGS)

platform: setup ## Print the plugins, storage and queues of a cluster with its facts (CLUSTER=example/storage)
	@exec .venv/bin/yard platform $(CLUSTER) $(ARGS)

cluster-run: setup ## Write a run's file for Flux; the job starts when you push it (CELL=... CLUSTER=gpu ARGS="--image NAME@sha256:...")
	@exec .venv/bin/yard cluster run new $(CELL) --cluster $(CLUSTER) $(ARGS)

##@ Work on trainyard
setup-dev: ## Make .venv from requirements-dev.lock, with what tests, lint, types and docs need
	@$(SETUP) requirements-dev.lock $(QUIET)

test: setup-dev ## Run the tests (ARGS="tests/house -k lock")
	@exec $(PYTEST) --numprocesses auto --maxprocesses 4 --dist worksteal -m "not long" $(ARGS)

test-smoke: setup-dev ## Run some of the long tests: killed runs that continue, some planted defects, the cheap faults
	@exec $(PYTEST) --numprocesses auto --maxprocesses 4 --dist worksteal -m smoke $(or $(ARGS),$$(grep -rl --include='test_*.py' 'pytest\.mark\.smoke' tests))

test-long: setup-dev ## Run the long tests: training on two ranks, every printed command, programs built from source
	@exec $(PYTEST) --numprocesses auto --maxprocesses 4 --dist worksteal -m "long and not longest" --ignore=tests/bench $(ARGS)

test-long-all: setup-dev ## Run the longest tests too: make train in odd places, killed examples, proofs with a stand-in for CUDA
	@exec $(PYTEST) --numprocesses auto --maxprocesses 4 --dist worksteal -m long --ignore=tests/bench $(ARGS)

test-security: setup-dev ## Run the tests that attack: hostile pods, manifests, checkpoints, neighbours on the network
	@exec $(PYTEST) --numprocesses auto --maxprocesses 4 --dist worksteal tests/security $(ARGS)

audit: setup-dev ## Check the locks for published vulnerabilities, the workflows with zizmor, the manifests with checkov
	@.venv/bin/python -m tests.parts.venv tests/audit/requirements.lock && exec $(PYTEST) tests/audit $(ARGS)

test-storage: setup-dev ## Run the tests of checkpoints in a bucket on a real S3 server (the first run builds it)
	@.venv/bin/python -m tests.parts.versitygw && exec $(PYTEST) tests/training/checkpoint/test_s3.py $(ARGS)

test-cluster: setup-dev ## Run the tests on a real cluster that is started for them (the first run builds Kubernetes)
	@.venv/bin/python -m tests.cluster build; exec $(PYTEST) --numprocesses 2 tests/cluster -m "not cluster_all" $(ARGS)

cluster-programs: setup-dev ## Only build what test-cluster starts: Kubernetes, the training operator, kwok
	@exec .venv/bin/python -m tests.cluster build

test-cluster-all: setup-dev ## Run the long tests too: lost nodes, an elastic job, TrainJobs, queues, Volcano, 1,024 nodes, Kubernetes 1.35 and 1.33
	@.venv/bin/python -m tests.parts.venv tests/cluster/kubeflow/requirements.lock; .venv/bin/python -m tests.cluster build; exec $(PYTEST) --numprocesses 2 tests/cluster $(ARGS)

test-flux: setup-dev ## Run the tests with real Flux, each cluster on its own Kubernetes (the first run builds both)
	@exec $(PYTEST) tests/flux $(ARGS)

test-monitoring: setup-dev ## Run the tests with a real Prometheus: scrapes, rules, an alert for a hang (the first run builds it)
	@exec $(PYTEST) tests/monitoring $(ARGS)

test-browser: setup-dev ## Run the tests of the report page in a real browser (Debian: apt-get install chromium)
	@exec $(PYTEST) tests/browser $(ARGS)

test-track: setup-dev ## Run the tests with a real MLflow server, Weights & Biases and trackio (the first run installs them)
	@.venv/bin/python -m tests.parts.venv tests/track/requirements.lock && exec $(PYTEST) tests/track $(ARGS)

test-bench: setup-dev ## Run the tests of the benchmarks: tiny rows of all sides, also those of a card
	@exec $(PYTEST) tests/bench $(ARGS)

faults: setup-dev ## Try each of the forty faults of tests/faults/faults.yaml once, beside plain torchrun; begins no trial after 36 minutes, run again to continue (ARGS="1 25" or ARGS=--keep)
	@.venv/bin/python -m tests.parts.venv tests/faults/requirements.lock && exec .venv/bin/python -m tests.faults.suite $(ARGS)

faults-all: setup-dev ## Try each fault with all its seeds; begins no trial after 170 minutes, run again to continue
	@.venv/bin/python -m tests.parts.venv tests/faults/requirements.lock && exec .venv/bin/python -m tests.faults.suite --all $(ARGS)

test-images: setup-dev ## Run the tests with a private Docker engine and registry (root, up to an hour)
	@exec $(PYTEST) tests/docker $(ARGS)

test-neuron: setup-dev ## Run the tests on XLA, in an environment with torch_xla (the first run makes it: 7 GiB)
	@.venv/bin/python -m tests.neuron.environment && exec $(PYTEST) tests/neuron -m neuron $(ARGS)

bench: setup-dev ## Measure training beside its peers in turns, in 20 minutes; run again to continue
	@.venv/bin/python -m tests.parts.venv tests/bench/requirements.lock && exec .venv/bin/python -m tests.bench.harness $(ARGS)

bench-all: setup-dev ## Measure every row, in 75 minutes (ARGS="lora restart" or ARGS=--keep)
	@.venv/bin/python -m tests.parts.venv tests/bench/requirements.lock && exec .venv/bin/python -m tests.bench.harness --all $(ARGS)

bench-gpu: ## Measure one card with this machine's torch and transformers, in nine minutes and without a network
	@PYTHONPATH=.cache/bench/packages exec python3 -m tests.bench.gpu $(ARGS)

bench-packages: setup-dev ## Fetch the packages that bench-gpu may lack, for Python 3.12 on x86-64
	@exec .venv/bin/uv pip install --quiet --target .cache/bench/packages --python-version 3.12 --python-platform x86_64-manylinux_2_28 --only-binary :all: --no-deps --require-hashes -r tests/bench/gpu.lock

bench-restart: setup-dev ## Time the start and the restart of two ranks, from torchrun and forked
	@exec $(PYTEST) tests/training/bench_restart.py $(ARGS)

prove-bench: setup-dev ## Prove planted defects, healthy scripts and our trainers; run again to continue (ARGS=ddp or ARGS=--keep)
	@.venv/bin/python -m tests.parts.venv tests/prove/requirements.lock && exec .venv/bin/python -m tests.prove.bench $(ARGS)

plan-error: setup-dev ## Predict published runs by constants fitted to the other sources, and print the planner's error (ARGS=rows.yaml)
	@exec .venv/bin/python -m tests.plan.error $(ARGS)

bench-data: setup-dev ## Time preparing text, compared with datasets.map and the same tokenizer
	@exec .venv/bin/python -m tests.cli.bench_data

lint: setup-dev ## Check style and format
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .

format: setup-dev ## Format the code and fix what ruff can fix
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .

types: setup-dev ## Check types
	@exec .venv/bin/mypy

docs: setup-dev ## Build the documentation site; a broken link or an orphan page fails
	@.venv/bin/python docs/generate.py && exec .venv/bin/python docs/generate.py --site

docs-serve: setup-dev ## Serve the documentation on this machine and rebuild it on every change
	@exec .venv/bin/python docs/generate.py --serve

ci: ## Run what continuous integration runs: set-up, lint, types and tests in a clean environment
	@exec bash .ci/run

lock: setup-dev ## Pin what changed in pyproject.toml, tests/audit, tests/bench, tests/cluster/kubeflow, tests/faults, tests/prove and tests/track (ARGS=--upgrade: pin the newest of everything)
	@$(COMPILE) --output-file requirements-dev.lock $(TRAIN) --extra image --group dev $(ARGS) && cp requirements-dev.lock requirements.lock && $(COMPILE) --output-file requirements.lock $(TRAIN) --extra image --group checkout && cp requirements-dev.lock requirements-track.lock && $(COMPILE) --output-file requirements-track.lock $(TRAIN) --extra image --extra track --group checkout && $(COMPILE) --output-file tests/track/requirements.lock tests/track/requirements.in $(ARGS) && $(COMPILE) --output-file tests/audit/requirements.lock tests/audit/requirements.in $(ARGS) && $(COMPILE) --constraint requirements-dev.lock --output-file tests/prove/requirements.lock tests/prove/requirements.in $(ARGS) && $(COMPILE) --output-file tests/cluster/kubeflow/requirements.lock tests/cluster/kubeflow/requirements.in $(ARGS) && $(COMPILE) --emit-build-options --output-file tests/faults/requirements.lock tests/faults/requirements.in $(ARGS) && $(COMPILE) --constraint requirements-dev.lock --output-file tests/bench/requirements.lock tests/bench/requirements.in $(ARGS) && $(COMPILE) --no-deps --constraint requirements-dev.lock --output-file tests/bench/gpu.lock tests/bench/gpu.in $(ARGS)

lock-neuron: setup-dev ## Pin the environments of test-neuron after a change of pyproject.toml
	@$(COMPILE) --override tests/neuron/requirements.in --output-file tests/neuron/requirements.lock $(TRAIN) tests/neuron/requirements.in $(ARGS) && $(COMPILE) --output-file tests/neuron/torchx.lock pyproject.toml --extra torchx $(ARGS)

clean: ## Remove caches; .venv, data and runs stay
	@chmod -R u+w .cache 2>/dev/null; rm -rf .cache build *.egg-info && find . -path ./.venv -prune -o -path ./local -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

purge: clean ## Also remove .venv and local/, which holds the prepared data and ALL runs with their checkpoints
	@rm -rf .venv local
