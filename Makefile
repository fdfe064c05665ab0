# Every target that needs the virtual environment makes it; a target with nothing to do takes no time.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
# An index with CPU-only wheels of torch, as the README says; empty: the index that pip is set up for.
TORCH_INDEX_URL ?=
MODEL ?=
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
EXTRA_INDEX := $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
# Waits for another apt instead of failing, should the line be pasted while one runs.
APT := apt-get -o DPkg::Lock::Timeout=300 install -y
PROTOS := $(shell find protos -name '*.proto')
PACKAGES := octavo gateway scheduler_service kvcache_service gpu_worker
CODE := $(PACKAGES) tests tools benchmarks setup.py
CPP := $(shell find gpu_worker tests benchmarks -name '*.cpp' -o -name '*.h')

.PHONY: help setup serve test test-slow test-all test-compose test-kernels test-clients test-chaos test-gpu lint format bench images clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: $(STAMP) ## make the virtual environment, install everything, generate code, compile the CPU kernels
	@$(BIN)/python -m tools.genproto
	@$(BIN)/python -m tools.build_cpu --if-possible

serve: setup ## start everything on this machine: make serve MODEL=... ARGS="--flag ..."
	@exec $(BIN)/python tools/foreground.py $(BIN)/octavo serve $(MODEL) $(ARGS)

test: setup ## the tests that every change must pass, about 4 minutes
	$(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=loadfile

test-slow: setup ## the full matrix and slow tests
	$(BIN)/python -m pytest -m "(slow or matrix) and not (chaos or compose or kernels or clients or gpu)" --timeout=900

test-all: test test-slow test-chaos test-compose test-kernels test-clients ## everything that needs no special hardware

test-compose: setup ## docker compose up on a real engine: the running one, or as root one of its own
	tools/docker_engine.sh run $(BIN)/python -m pytest -m compose --timeout=900

test-kernels: setup ## Triton kernels in the interpreter
	@$(call run-marked,kernels)

test-clients: setup ## clients in other languages
	@$(call run-marked,clients)

test-chaos: setup ## harms every process and every connection under load, about 10 minutes
	@$(call run-marked,chaos)

test-gpu: setup ## needs a CUDA device
	@$(call run-marked,gpu)

lint: setup ## ruff, mypy, clang-format, buf
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/buf lint
	@if [ -f protos/baseline.binpb ]; then \
		echo "$(BIN)/buf breaking --against protos/baseline.binpb"; \
		$(BIN)/buf breaking --against protos/baseline.binpb; \
	fi

format: setup ## lay out Python and C++
	$(BIN)/ruff format $(CODE)
	$(BIN)/clang-format -i $(CPP)

bench: setup ## start a server, measure it, stop it: make bench ARGS="--runs 1 -- --flag of octavo serve"
	$(BIN)/python -m benchmarks.serving $(ARGS)

images: ## the images of compose.yaml
	docker compose build

clean: ## remove what make has made, but no model
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(PACKAGES) tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	for generated in octavo/*/v1; do rm -rf "$${generated%/v1}"; done
	rm -f octavo/.genproto.stamp octavo/.genproto.lock gpu_worker/cpu/liboctavo_cpu.*

# --- set-up -----------------------------------------------------------------------------------------------------------

$(STAMP): pyproject.toml constraints.txt setup.py $(PROTOS)
	@$(call check-prerequisites)
	@[ -x $(BIN)/python ] || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV)"
	@$(PIP) install $(if $(wildcard $(BIN)/octavo),-qq) $(EXTRA_INDEX) -c constraints.txt -e '.[all,embedded,dev]'
	@touch $@

# Says everything that is missing at once, with the line that installs it.
define check-prerequisites
	missing=""; \
	command -v git >/dev/null || missing="$$missing git"; \
	command -v make >/dev/null || missing="$$missing make"; \
	if ! command -v $(PYTHON) >/dev/null; then missing="$$missing python3 python3-venv"; \
	elif ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); Octavo needs Python 3.11 or later: make PYTHON=python3.12 ..." >&2; exit 1; \
	elif ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then missing="$$missing python3-venv"; fi; \
	if [ -n "$$missing" ]; then echo "missing:$$missing; install with: $(APT)$$missing" >&2; exit 1; fi
endef

# $(1) is a marker of pyproject.toml. pytest's status 5 is "no test was found": said, but no failure.
define run-marked
	$(BIN)/python -m pytest -m $(1) --timeout=900; status=$$?; \
	if [ $$status -eq 5 ]; then echo "test-$(1): nothing is there yet"; exit 0; fi; exit $$status
endef
