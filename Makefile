# `make` lists the targets. Set-up needs Python 3.11 to 3.13 and a package index: no root, no GPU.

# Read by .ci/setup.py and .ci/pick-python, where they are explained.
export PYTHON TORCH TORCH_CPU_INDEX

# Tests run in this many processes: with four, two cores are idle for 3 to 6 % of the time: many tests
# wait for processes of their own. ARGS is added to the command of `make test` and `make demo`.
JOBS ?= 4
ARGS ?=

BIN := .venv/bin

# Tests and the demo start Python a thousand times: each would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo gpu-check test campaign lint docs wheel release-check clean
.DEFAULT_GOAL := help

help:
	@echo 'make setup     make .venv and install everything in it; does nothing when up to date'
	@echo 'make demo      train a small GPT with LuWu and with FSDP2, and compare (CPU)'
	@echo 'make gpu-check on a machine with a GPU, in under 8 minutes: its tests, LuWu and what torch has'
	@echo 'make test      run the tests, except those marked slow (ARGS="-m slow" runs these)'
	@echo 'make campaign  all campaigns of docs/reliability.md, some hours; goes on where it was stopped'
	@echo 'make lint      ruff, mypy, the import rules and words of texts'
	@echo 'make docs      build the documents as a site, in site'
	@echo 'make wheel     build wheel and sdist of luwu-emulator, in dist'
	@echo 'make release-check  install both as users do, with Python 3.11 to 3.13, and try them'
	@echo 'make clean     remove .venv, caches and build products; keeps runs and training state'
	@echo
	@echo 'PYTHON=python3.12       the interpreter: 3.11, 3.12 or 3.13'
	@echo 'TORCH=auto              the CUDA build of torch where an NVIDIA driver is seen, else the CPU one'
	@echo 'TORCH=cpu|cuda          that build'
	@echo 'TORCH=torch==2.12.0     any requirement, URL or wheel that pip can install'
	@echo 'TORCH_CPU_INDEX=URL     where CPU builds come from (https://download.pytorch.org/whl/cpu)'
	@echo 'JOBS=4  ARGS=...        test processes; more arguments for test, demo and gpu-check'

setup:
	@python=$$(sh .ci/pick-python) && "$$python" .ci/setup.py

# An eighth of the state's 9.9 MiB: one to four minutes on two cores.
demo: setup
	@$(BIN)/python -m luwu compare --arms luwu,luwu_ram,fsdp --steps 100 --memory-budget 1270KiB $(ARGS)

# Needs no set-up: an interpreter whose torch sees a GPU is looked for, python3 first.
gpu-check:
	@$${PYTHON:-python3} -m benchmarks.gpu_check $(ARGS)

# In the order of the files, but tests of real processes, few and long, come first.
# A test process that crashes ends the run and is named: pytest-xdist 3.8 starts another, whose
# tests it never sends, and waits for ever.
test: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
		--max-worker-restart 0 -m 'not slow' $(ARGS)

# What is done on this very program is not done again; ARGS="--part 0.01" does a hundredth.
campaign: setup
	$(BIN)/python -m tests.campaign --jobs $(JOBS) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/words.py

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'open site/index.html'

wheel: setup
	$(BIN)/python -m hatchling build -d dist

# In temporary directories; ARGS="--only 3.12" tries one Python. Changes no version and sends nothing.
release-check: setup
	$(BIN)/python -m tests.release $(ARGS)

clean:
	rm -rf .venv .venv.old build dist site *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
