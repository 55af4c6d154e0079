# Everything that is done to this repository. `make` or `make help` lists it.
# A fresh clone needs GNU make and Python 3.11 or later; the rest is installed into .venv.

is_new_enough := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(or $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p $(is_new_enough) 2>/dev/null && echo $$p && break; done),python3)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTENSION := $(VENV)/.extension
SOURCES := CMakeLists.txt $(wildcard csrc/*.cpp csrc/*.h csrc/isa/*.cpp csrc/isa/*.h)
CMAKE := $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja

# With a compiler, octavo without its extension is a failure; without one, it is what one gets.
ifneq ($(or $(shell command -v c++),$(shell command -v g++),$(shell command -v clang++)),)
export OCTAVO_EXTENSION := required
endif
INSTALL = $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation \
	--config-settings=build-dir=build/extension -e .

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup extension demo test test-full test-cpp test-cpp-checked test-cpp-arm test-gpu test-gpu-memcheck format lint \
	types docs bench bench-peers check clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(EXTENSION)  ## make .venv, install octavo and its tools, fetch the embedded model
	@$(BIN)/octavo pull smollm2-135m

# The stamp is the last thing written: an install that failed is tried again.
$(STAMP): requirements-dev.txt pyproject.toml
	@rm -f $@
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		$(PYTHON) $(is_new_enough) 2>/dev/null || { \
			echo "octavo needs Python 3.11 or later, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." \
				"Name another one: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }; \
		$(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	$(INSTALL)
	@touch $@ $(EXTENSION)

# Compiles what has changed; the build is kept in build/extension.
$(EXTENSION): $(STAMP) $(SOURCES)
	$(INSTALL)
	@touch $@

extension: $(EXTENSION)  ## compile octavo._cpu again, where its sources changed

demo: setup  ## eight chat requests that share a system prompt, and what memory they took
	@$(BIN)/python examples/demo.py $(ARGS)

test: setup  ## all tests that fit ten minutes on two cores (ARGS="-k name" picks some)
	$(BIN)/pytest -m "not slow and not net" $(ARGS)

test-full: setup test-cpp test-cpp-checked  ## the same, the long ones, and all tests of the C++ parts
	$(BIN)/pytest -m "not net" $(ARGS)

test-cpp: $(STAMP)  ## the tests of the C++ parts, for every instruction set that this machine has
	$(CMAKE) -B build/cpp -DOCTAVO_EXTENSION=OFF -DOCTAVO_TESTS=ON
	$(BIN)/cmake --build build/cpp
	$(BIN)/ctest --test-dir build/cpp --output-on-failure -L "$$(build/cpp/available_isas)"

test-cpp-checked: $(STAMP)  ## the same, with addresses and undefined behaviour checked
	$(CMAKE) -B build/cpp-checked -DOCTAVO_EXTENSION=OFF -DOCTAVO_TESTS=ON -DOCTAVO_SANITIZE=ON
	$(BIN)/cmake --build build/cpp-checked
	$(BIN)/ctest --test-dir build/cpp-checked --output-on-failure -L "$$(build/cpp-checked/available_isas)"

# On Debian: apt-get install g++-aarch64-linux-gnu qemu-user
ARM := aarch64-linux-gnu
test-cpp-arm: $(STAMP)  ## the C++ parts compiled for 64-bit Arm, and their tests under emulation
	@if ! command -v $(ARM)-g++ >/dev/null; then \
		echo "test-cpp-arm: skipped, there is no cross compiler $(ARM)-g++"; exit 0; fi; set -e -x; \
	$(CMAKE) -B build/cpp-arm -DOCTAVO_EXTENSION=OFF -DOCTAVO_TESTS=ON -DCMAKE_SYSTEM_NAME=Linux \
		-DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$(ARM)-g++ \
		"-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/$(ARM)"; \
	$(BIN)/cmake --build build/cpp-arm --target all octavo_kernels; set +x; \
	if ! command -v qemu-aarch64 >/dev/null; then \
		echo "test-cpp-arm: compiled, not run: there is no emulator qemu-aarch64"; exit 0; fi; \
	$(BIN)/ctest --test-dir build/cpp-arm --output-on-failure

# A driver's or a library's warning is no fault of these tests.
test-gpu: setup  ## the tests that need a CUDA device
	$(BIN)/python -m pytest tests/gpu tests/kernels tests/runner/test_gpu_runner.py -q -W default $(ARGS)

test-gpu-memcheck: setup  ## the kernels' tests on a CUDA device, each access to memory checked (half an hour)
	compute-sanitizer --tool memcheck --error-exitcode 1 \
		$(BIN)/python -m pytest tests/kernels -q -W default $(ARGS)

format: $(STAMP)  ## rewrite the sources in the one format, sort imports
	$(BIN)/ruff check --select I --fix
	$(BIN)/ruff format

lint: $(STAMP)  ## rules, format and who may import whom; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(STAMP)  ## check types with pyright
	$(BIN)/pyright

docs: $(STAMP)  ## build the documentation into site/; a broken link is an error
	$(BIN)/mkdocs build --strict

bench: $(STAMP)  ## time the deciding plane (pytest-benchmark)
	$(BIN)/pytest benchmarks/micro --benchmark-only $(ARGS)

# The engines lie in environments of their own; what cannot be installed is left out.
bench-peers: setup  ## octavo against llama.cpp, OpenVINO and vLLM, which it installs first (4 GB)
	$(BIN)/python benchmarks/peers/install.py .peers
	@$(BIN)/octavo bench peers $(ARGS)

check: lint types test-cpp test docs  ## all that must pass before a change lands

clean:  ## remove caches and built files; keeps .venv and the model
	rm -rf site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find src tests benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
