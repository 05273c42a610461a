# envkit: everything a person or a CI run types. `make demo` and `make test` set up all they need by themselves.
#
# As root on Debian or Ubuntu, what is missing is installed with apt-get, each step said; elsewhere it is named.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
INSTALLED := .venv/.installed
WORLD_READY := .venv/.world-ready
WORLD := $(BIN)/python -m tests.world
# CUDA torch from the Python index on a base of Debian's own packages: no registry, no channel, no engine.
DEMO_REQUEST ?= --cuda 12.6 --source pypi --template wheels
PYTEST := $(BIN)/python -m pytest -q $(if $(CI),--color=no) $(PYTEST_OPTIONS)
# Which tests share a process, and which of these sets starts first: see tests/groups.py.
PROCESSES ?= 3
# `make test-rest LIMIT=3000`: no test begins after so many seconds, and those that did not are counted. 0 is no limit.
LIMIT ?= 0
GROUPS := $(PYTEST) --numprocesses $(PROCESSES) --dist loadscope --no-loadscope-reorder --run-engines --limit $(LIMIT)
SPACE := $(BIN)/python -m tests.space
SCRATCH := $(BIN)/python -m tests.scratch
# All processes of the tests share what is started here. Whatever the outcome, it ends, and its engines' images go. So
# no other run may begin before.
CLEARED = mkdir -p .world; exec 9>.world/tests.lock; flock --nonblock 9 \
  || { echo 'test: another run of the tests uses this folder; it has to end first' >&2; exit 1; }; \
  trap '$(WORLD) down; $(WORLD) clear; $(SCRATCH) down' EXIT; \
  $(WORLD) down 2>/dev/null; \
  export PYTEST_DEBUG_TEMPROOT="$$($(SCRATCH) up)"; $(WORLD) up >/dev/null || true; $(1)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Thousands of short processes import envkit: compiling it each time would double the time of the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup lint lint-fast unit test test-rest test-all fuzz demo image embedded-tools docs bench clean

# Usual times on two cores; those of test and demo are without the set-up of the first run. `image` and `bench` were not
# measured.
help:
	@echo 'make setup      about 3 min   .venv with envkit and every tool (the first time)'
	@echo 'make demo       about 2 min   build a CUDA image without an engine and verify it; a few GB of downloads'
	@echo 'make lint       about 90 s    ruff, codespell, mypy, import-linter; FILE=PATH takes seconds'
	@echo 'make lint-fast  seconds       ruff alone'
	@echo 'make unit       minutes       the fast tests: no socket, no process; ARGS=FOLDER takes only those'
	@echo 'make test       about 12 min  set everything up, then lint and the quick tests, those with real engines too'
	@echo 'make test-rest  about 1 h     every test that make test left out'
	@echo 'make test-all   over 1 h      lint and every test'
	@echo 'make fuzz       about 7 min   coverage-guided fuzzing of the parsers of untrusted input, SECONDS=60 each'
	@echo 'make image                    an image of envkit itself, built without an engine; 40 MB of downloads'
	@echo 'make docs       seconds       the documentation site in build/site; warnings are errors'
	@echo 'make bench                    every module of benchmarks/'
	@echo 'make clean      seconds       end what the world started and remove what was made here'

setup: $(READY)

$(INSTALLED): pyproject.toml
	@command -v $(PYTHON) >/dev/null \
	  || { echo "setup: needs Python 3.11 or newer, and there is no $(PYTHON) (PYTHON=NAME names another)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo 'setup: apt-get install python3-venv' >&2; \
	    apt-get update -qq || true; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-venv >/dev/null; \
	  else echo 'setup: missing python3-venv (as root: apt-get install python3-venv)' >&2; exit 1; fi; }
	@echo 'setup: .venv with envkit' >&2
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q -e .
	@touch $@

$(READY): $(INSTALLED)
	@echo 'setup: its tools, MkDocs and a CPU torch' >&2
	@$(BIN)/python -m pip install -q -e '.[dev,docs,fleet]'
	@$(WORLD) torch
	@touch $@

# Made once: the engines, a Debian base, a conda channel and Miniconda. What cannot be had here, its tests say again.
$(WORLD_READY): $(READY)
	@echo 'setup: what the tests of engines need (once)' >&2
	@$(WORLD) up >/dev/null || true
	@$(WORLD) down
	@touch $@

# `make lint FILE=envkit/run/model.py`: ruff and mypy for that file alone, in a second or two.
lint: setup
	$(BIN)/ruff check $(FILE)
	$(BIN)/ruff format --check $(FILE)
	$(BIN)/mypy $(FILE)
	@[ -n "$(FILE)" ] || { set -x; $(BIN)/codespell -D - -D ci/words.txt envkit docs templates ci images *.md; $(BIN)/lint-imports; }

lint-fast: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# `make unit ARGS="tests/unit/lock -k seal"`: those alone.
unit: setup
	$(PYTEST) --numprocesses $(PROCESSES) --dist loadscope $(or $(ARGS),tests/unit)

test: setup $(WORLD_READY)
	@$(SPACE) quick
	@SECONDS=0; $(MAKE) lint; $(call CLEARED,$(GROUPS) --part quick --lint-seconds $$SECONDS)

test-rest: setup $(WORLD_READY)
	@$(SPACE) rest
	@$(call CLEARED,$(GROUPS) --part rest)

test-all: setup $(WORLD_READY)
	@$(SPACE) all
	@SECONDS=0; $(MAKE) lint; $(call CLEARED,$(GROUPS) --part all --lint-seconds $$SECONDS)

# bubblewrap makes namespaces; containers have none by default, and there proot takes its place.
# `make fuzz SECONDS=600`: so long for each target of tests/fuzz.
fuzz: SECONDS := 60
fuzz: setup
	@$(BIN)/python -m pip install -q -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz $(SECONDS)

demo: $(INSTALLED) embedded-tools
	$(BIN)/envkit build $(DEMO_REQUEST) --engine embedded --allow-cpu

image: $(INSTALLED) embedded-tools
	@$(BIN)/python ci/image/build.py

# What the embedded engine makes bases and runs images with.
embedded-tools:
	@missing=; command -v mmdebstrap >/dev/null || missing=mmdebstrap; \
	if unshare --user --map-root-user --pid --fork --mount-proc true 2>/dev/null; \
	then command -v bwrap >/dev/null || missing="$$missing bubblewrap"; \
	else command -v proot >/dev/null || missing="$$missing proot"; fi; \
	[ -z "$$missing" ] || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "embedded: apt-get install $$missing" >&2; \
	  apt-get update -qq || true; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing >/dev/null; \
	else echo "embedded: missing $$missing (as root: apt-get install $$missing)" >&2; exit 9; fi

# Material prints a notice about a future MkDocs, which is not the one that is installed.
docs: $(INSTALLED)
	@$(BIN)/python -m pip install -q -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean --config-file website/mkdocs.yml
	@echo 'docs: build/site/index.html'

bench: setup
	@failed=; for file in benchmarks/[a-z]*.py benchmarks/[a-z]*/__main__.py; do \
	  name=$${file#benchmarks/}; name=$${name%.py}; name=$${name%/__main__}; echo "== $$name"; \
	  $(BIN)/python -m benchmarks.$$name || failed="$$failed $$name"; \
	done; [ -z "$$failed" ] || { echo "bench: does not hold:$$failed" >&2; exit 1; }

clean:
	@[ ! -x $(BIN)/python ] || { $(WORLD) down; $(SCRATCH) clear; } || true
	@for mounted in $$(awk -v root="$(CURDIR)/.world/" 'index($$2, root) == 1 { print $$2 }' /proc/mounts | sort -r); do \
	  umount "$$mounted"; done
	rm -rf .fuzz .world .venv build dist .envkit .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
