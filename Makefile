# The front door. Every target is one line; what it does is written in tools/ (the yard command) and tests/.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

# Set these on make's command line; a MODEL or RUN in the environment is somebody else's.
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
ON     =
ARGS   =
PYTHON = $(or $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do command -v $$name && break; done),$(error Python 3.11 or newer is needed and none is on PATH))

# A prompt may hold any character, so it travels in the environment and not through the shell's quoting.
export PROMPT
# Another project's `tools` package on PYTHONPATH would come before ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

.PHONY: help setup train finetune sample run data render wiring matrix-sync matrix-check precompile job job-status why image image-test push cluster down platform cluster-run preflight diff test test-long test-cluster test-cluster-all test-flux test-images test-neuron bench-cells bench-restart bench-data lint format types ci lock lock-neuron clean purge

##@ Start here
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET [VARIABLE=value]"} /^##@ / {print "\n" substr($$0, 5)} /^[a-z%-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## Make .venv from requirements.lock; every other target does it when needed
	@$(PYTHON) tools/bootstrap.py $(if $(filter setup,$(MAKECMDGOALS)),,--quiet)

train: setup ## Train overlays/cpu/llama-tiny on this machine; run again to continue (ARGS="--set train.steps=400")
	@exec .venv/bin/yard run overlays/cpu/llama-tiny $(ARGS)

finetune: setup ## Fine-tune the model that `make train` made, on Python's own help; run again to continue
	@exec .venv/bin/yard run overlays/cpu/llama-tiny-lora $(ARGS)

sample: setup ## Write text from a run's checkpoint (RUN=cpu-llama-tiny-train PROMPT="class Queue")
	@exec .venv/bin/yard sample $(RUN) --prompt "$$PROMPT" $(ARGS)

data: setup ## Prepare text as token shards (SOURCE="corpus/*.jsonl.gz" ARGS="--vocab-size 32000")
	@exec .venv/bin/yard data prepare $(SOURCE) $(ARGS)

##@ Cells
run: setup ## Train any cell on this machine (CELL=overlays/cpu/llama-tiny)
	@exec .venv/bin/yard run $(CELL) $(ARGS)

render: setup ## Print a cell's manifest (CELL=...)
	@exec .venv/bin/yard render $(CELL) $(ARGS)

wiring: setup ## Prove that a cell's pods train as one job (CELL=...)
	@exec .venv/bin/yard wiring $(CELL) $(ARGS)

preflight: setup ## Judge every cell by all rules, offline, before anything is paid for
	@.venv/bin/python -m tools.kube.schemas >/dev/null && exec .venv/bin/yard preflight --all $(ARGS)

matrix-sync: setup ## Write the cells that overlays/matrix.yaml names
	@exec .venv/bin/yard matrix sync $(ARGS)

matrix-check: setup ## Fail when a cell differs from what overlays/matrix.yaml says
	@exec .venv/bin/yard matrix check $(ARGS)

diff: setup ## Show what applying a cell would change on the current cluster (CELL=...)
	@exec .venv/bin/yard diff $(CELL) $(ARGS)

##@ Jobs
job: setup ## Submit a cell to the current cluster and follow it to its first step (HW=cpu MODEL=llama-tiny; your own code: DEV=1 ON=IMAGE)
	@$(if $(DEV),image=$$(.venv/bin/yard image overlay . --on "$(ON)" --push) && )exec .venv/bin/yard job submit overlays/$(HW)/$(MODEL) $(if $(DEV),--image "$$image" )$(ARGS)

job-status: setup ## Show a job: pods, step, speed, time left (JOB=name, or nothing for the only one)
	@exec .venv/bin/yard job status $(JOB) $(ARGS)

why: setup ## Say why a job does not train: one cause, its evidence, what to do (JOB=...)
	@exec .venv/bin/yard job why $(JOB) $(ARGS)

job-%: setup ## Any other yard job command: list, logs, metrics, plot, stop, retry, cp ... (JOB=name ARGS="--rank 0")
	@exec .venv/bin/yard job $* $(JOB) $(ARGS)

precompile: setup ## Compile a trn1 cell's graphs on the current cluster before it trains (MODEL=bert-large)
	@.venv/bin/yard precompile trn1/$(MODEL) $(ARGS) | kubectl apply --server-side -f -

##@ Images
image: setup ## Build an image with the Docker engine (IMAGE=trainer-cpu ARGS="--tag-from describe")
	@exec .venv/bin/yard image build $(IMAGE) $(ARGS)

image-test: setup ## Try what a built image does: imports, rights, signals, a killed training (LEVEL=full)
	@exec .venv/bin/yard image test $(IMAGE) --level $(LEVEL) $(ARGS)

push: setup ## Push a built image, and make every cell run it by its digest (TO=registry.example.com/team/trainer-cpu)
	@exec .venv/bin/yard image push $(IMAGE) --to "$(TO)" --pin $(ARGS)

##@ Clusters
cluster: setup ## Make a cluster on AWS with eksctl, or go on making it (CLUSTER=cpu-demo ARGS=--dry-run)
	@exec .venv/bin/yard cluster create $(CLUSTER) $(ARGS)

down: setup ## Delete a cluster and what is tagged its own; lists, prices and asks first (CLUSTER=cpu-demo)
	@exec .venv/bin/yard cluster down $(CLUSTER) $(ARGS)

platform: setup ## Print a cluster's plugins, storage and queues with its facts (CLUSTER=example/storage)
	@exec .venv/bin/yard platform $(CLUSTER) $(ARGS)

cluster-run: setup ## Write a run's file for Flux; the job starts when it is pushed (CELL=... CLUSTER=gpu ARGS="--image NAME@sha256:...")
	@exec .venv/bin/yard cluster run new $(CELL) --cluster $(CLUSTER) $(ARGS)

##@ Work on trainyard
test: setup ## Run the tests (ARGS="tests/house -k lock")
	@exec .venv/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal -m "not long" $(ARGS)

test-long: setup ## Run what make test leaves out for its length: trainings on two ranks, every printed command
	@exec .venv/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal -m long $(ARGS)

test-cluster: setup ## Run the tests on a real cluster, made here for them (builds it once)
	@.venv/bin/python -m tests.cluster build; exec .venv/bin/python -m pytest --numprocesses 2 tests/cluster -m "not cluster_all" $(ARGS)

test-cluster-all: setup ## Run them with the long ones: lost nodes, an elastic job, 512 GPUs and a queue, Kubernetes 1.33
	@.venv/bin/python -m tests.cluster build; exec .venv/bin/python -m pytest --numprocesses 2 tests/cluster $(ARGS)

test-flux: setup ## Run the tests on real Flux, each cluster on a Kubernetes of its own (builds both once)
	@exec .venv/bin/python -m pytest tests/flux $(ARGS)

test-images: setup ## Run the tests on a private Docker engine and registry, made for them (root, up to an hour)
	@exec .venv/bin/python -m pytest tests/docker $(ARGS)

test-neuron: setup ## Run the tests on XLA, in an environment with torch_xla that is made for them once (7 GiB)
	@.venv/bin/python -m tests.neuron.environment && exec .venv/bin/python -m pytest tests/neuron -m neuron $(ARGS)

bench-cells: setup ## Time rendering and judging every cell
	@exec .venv/bin/python -m tools.preflight.benchmark

bench-restart: setup ## Time a start and a restart of two ranks, as torchrun starts them and forked
	@exec .venv/bin/python -m pytest tests/training/bench_restart.py $(ARGS)

bench-data: setup ## Time preparing text, against datasets.map with the same tokenizer
	@exec .venv/bin/python -m tools.local.data_benchmark

lint: setup ## Check style and format
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .

format: setup ## Format the code and fix what can be fixed
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .

types: setup ## Check types
	@exec .venv/bin/mypy

ci: ## Do what the continuous integration does: lint, types, tests, in a clean environment
	@exec bash .ci/run

lock: setup ## Pin the newest allowed versions of what changed in requirements*.in (ARGS=--upgrade: of all)
	@.venv/bin/uv pip compile --quiet --cache-dir .cache/uv --universal --python-version 3.11 --generate-hashes --no-header --output-file requirements.lock requirements.in requirements-dev.in $(ARGS)

lock-neuron: setup ## Pin the environment of test-neuron anew, after a change of requirements.in
	@.venv/bin/uv pip compile --quiet --cache-dir .cache/uv --universal --python-version 3.11 --generate-hashes --no-header --override tests/neuron/requirements.in --output-file tests/neuron/requirements.lock requirements.in tests/neuron/requirements.in $(ARGS) && .venv/bin/uv pip compile --quiet --cache-dir .cache/uv --universal --python-version 3.11 --generate-hashes --no-header --output-file tests/neuron/torchx.lock requirements-torchx.in $(ARGS)

clean: ## Remove caches and litter; .venv, data and runs stay
	@chmod -R u+w .cache 2>/dev/null; rm -rf .cache build *.egg-info && find . -path ./.venv -prune -o -path ./local -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

purge: clean ## Remove also .venv and local/, which holds the prepared data and ALL runs with their checkpoints
	@rm -rf .venv local
