# Glasshouse. `make` alone prints what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
TRACK  := .venv-track
BIN    := $(VENV)/bin
# One torch thread a process, several processes: two threads lose as soon as anything else runs.
export OMP_NUM_THREADS := 1
export HF_HUB_DISABLE_TELEMETRY := 1

##@ The two commands
.PHONY: demo
demo: $(VENV)/.ready ## a language model learns digit sums by RL, in a minute or two
	@$(BIN)/python training/example.rl/train.py $(ARGS)

.PHONY: test
test: $(VENV)/.ready ## all checks and tests; EXP=example.rl: one experiment on mock assets
ifdef EXP
	@$(BIN)/python tests/run_test.py $(EXP)
else
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/hadolint training/*/Dockerfile
	@{ echo $(BIN)/mypy; printf '$(BIN)/python tests/run_test.py --brief %s\n' $(EXPERIMENTS); } \
	  | xargs -P 2 -I {} sh -c '{}'
	@$(BIN)/python -m pytest -m "not alone" -n 2 --dist worksteal
	@$(BIN)/python -m pytest -m alone
endif

##@ Working on it
.PHONY: check
check: $(VENV)/.ready ## format, lint and type-check
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/mypy

.PHONY: new
new: $(VENV)/.ready ## EXP=my.rl: a new experiment, copied from training/example.rl
	@$(BIN)/python tools/new_experiment.py "$(EXP)"

.PHONY: setup
setup: $(VENV)/.ready ## only install; the other targets do it by themselves

##@ Images (docs/images.md)
.PHONY: build
build: ## EXP=example.rl: its image, with docker, podman or buildah; CUDA=1, RUNPOD=1
	@$(PYTHON) tools/images.py build "$(EXP)" -- $(ARGS)

.PHONY: push
push: ## EXP=example.rl: to the registry that .env names
	@$(PYTHON) tools/images.py push "$(EXP)"

.PHONY: runpod-template
runpod-template: ## EXP=example.rl: the JSON of a RunPod template, printed; SECRETS="HF_TOKEN"
	@$(PYTHON) tools/images.py template "$(EXP)" -- $(ARGS)

##@ Slow proofs (each says how long)
.PHONY: demo-seeds
demo-seeds: $(VENV)/.ready ## 5 seeds of the demo: 0.50 or less to 0.90 or more in each (10 min)
	@$(BIN)/python -m proofs.learning demo

.PHONY: learn-all
learn-all: $(VENV)/.ready ## REINFORCE over 5 seeds, GRPO on every task and style (30 min)
	@$(BIN)/python -m proofs.learning reinforce tasks

.PHONY: control
control: $(VENV)/.ready ## positive and negative control, 5 seeds each (15 min)
	@$(BIN)/glasshouse control --config training/example.rl/config.yaml $(ARGS)

.PHONY: resume-proof
resume-proof: $(VENV)/.ready ## killed at every step and 200 times at random: goes on, bit for bit (15 min)
	@$(BIN)/python -m proofs.resume steps
	@$(BIN)/python -m proofs.resume kills $(ARGS)

.PHONY: hosts-proof
hosts-proof: $(VENV)/.ready ## machines in network namespaces: TLS, strangers, cut, kill, join again, train through it (5 min, root)
	@$(BIN)/python -m proofs.hosts $(ARGS)

.PHONY: image-proof
image-proof: ## build example.rl's image with buildah, no secret in it; train, stop, kill, go on (10 min, root)
	@$(PYTHON) -m proofs.image $(ARGS)

.PHONY: forecast-proof
forecast-proof: $(VENV)/.ready ## the model of the pipeline against 1, 2 and 4 generators, on a quiet machine (5 min)
	@$(BIN)/python -m proofs.forecast $(ARGS)

.PHONY: data-million
data-million: $(VENV)/.ready ## a million fresh problems a task: no repeat, no leak, flat memory (10 min)
	@$(BIN)/python -m proofs.fresh_problems $(ARGS)

.PHONY: data-scaling
data-scaling: $(VENV)/.ready ## how large should a training set be? fixed sets against fresh (hours)
	@$(BIN)/glasshouse data scaling --config training/example.rl/config.yaml $(ARGS)

.PHONY: monarch-kills
monarch-kills: $(VENV)/.ready ## 50 kills of generators in one run: bitwise the undisturbed run (5 min)
	@$(BIN)/python -m proofs.generator_kills $(ARGS)

.PHONY: track-proof
track-proof: $(TRACK)/.ready ## every tracker for real: live, killed, gone on, failing, after the fact (5 min)
	@$(TRACK)/bin/python -m pytest tests/track $(ARGS)

.PHONY: compare-trl
compare-trl: $(BENCH)/.ready ## every loss that TRL has: equal values and gradients (1 min)
	@$(BENCH)/bin/python bench/compare_trl.py $(ARGS)

.PHONY: bench
bench: $(BENCH)/.ready ## seconds a step, tokens/s and memory beside TRL and transformers (10 min)
	@$(BENCH)/bin/python bench/bench.py $(ARGS)
	@$(BENCH)/bin/python bench/generators.py

.PHONY: pocket
pocket: $(VENV)/.ready ## build the embedded model anew into build/pocket (under an hour)
	@$(BIN)/glasshouse pocket build --out build/pocket

# --- set-up ------------------------------------------------------------------------------------
# Python compiles the modules that it imports; compiling all 17,000 files here would take a minute.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
EXPERIMENTS := $(notdir $(patsubst %/train.py,%,$(wildcard training/*/train.py)))

$(VENV)/.ready: shared/pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Glasshouse needs Python 3.11 to 3.13; set PYTHON=/path/to/python3.11."; exit 2; }
	@echo "Setting up $(VENV) (once, a few minutes: PyTorch is large) …"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) "torch==2.13.0"
	@$(INSTALL) -e "shared[dev,gym,lora,monarch,monitor,parquet,report,sql,tensorboard]"
	@touch $@

$(BENCH)/.ready: bench/requirements.txt shared/pyproject.toml
	@echo "Setting up $(BENCH) (once) …"
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt -e shared
	@touch $@

$(TRACK)/.ready: shared/pyproject.toml
	@echo "Setting up $(TRACK) (once) …"
	@$(PYTHON) -m venv $(TRACK)
	@$(TRACK)/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	@$(TRACK)/bin/python -m pip install --quiet --disable-pip-version-check pytest pytest-timeout \
	  -e "shared[mlflow,tensorboard,trackio,wandb]"
	@touch $@

.PHONY: help
help:
	@awk 'BEGIN {FS = ":.*?## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
