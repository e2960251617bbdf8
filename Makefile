# Two commands do all the set-up: `make demo` and `make test`. Both work as root on a new Debian or Ubuntu machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAB := $(BIN)/python -m tests.lab
HOSTS ?= 1
NAME ?= lab
CELLS ?= 40
# Tests wait for engines most of their time, so three at once suit two cores.
WORKERS ?= 3
.DEFAULT_GOAL := help
.PHONY: help setup test test-pure test-lab test-real test-releases test-cure faults perf gpu-pack lint lab lab-down demo demo-trial picture docs clean

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

setup: $(VENV)/.stamp  ## Install what is needed (apt and pip)

$(VENV)/.stamp: pyproject.toml tests/setup.sh
	bash tests/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

test: setup  ## All tests but the real SGLang's, those with torch and the sweep over all releases
	@# Where PYTHONDONTWRITEBYTECODE is set, each of a thousand commands would compile the project anew.
	@$(BIN)/python -m compileall -q deployer tests
	$(BIN)/python -m pytest -m "not real and not torch and not measuring" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)
	$(BIN)/python -m pytest tests/bench tests/switch tests/strategies -m "measuring and not real" $(ARGS)

test-pure: setup  ## The fast tests: no root, no network
	$(BIN)/python -m pytest tests/pure $(ARGS)

test-lab: setup  ## The tests on real hosts (systemd-nspawn; root)
	$(BIN)/python -m pytest -m lab $(ARGS)

test-real: setup  ## Switch and roll back the real SGLang on the CPU, in a lab host
	bash tests/real/install.sh
	$(BIN)/python -m pytest -m real tests/real $(ARGS)

test-releases: setup  ## Patches against the wheels of all 62 SGLang releases
	DEPLOY_ALL_RELEASES=1 $(BIN)/python -m pytest tests/patches/test_releases.py $(ARGS)

test-cure: setup  ## The patches cure the mistakes, on the real packages' own classes (torch, CPU)
	bash tests/patches/cure.sh
	$(BIN)/python -m pytest -m torch tests/patches/test_cure.py $(ARGS)

faults: setup  ## The fault matrix: make faults CELLS=40, or CELLS=all
	$(BIN)/python -m tests.faults --cells $(CELLS)

perf: setup  ## Speed against peers, as ratios of one run (tests/perf)
	bash tests/real/install.sh
	$(BIN)/python -m pytest tests/perf -s $(ARGS)

gpu-pack: setup  ## Build what travels to a machine with real GPUs (tests/gpu/README.md)
	$(BIN)/python -m tests.gpu pack $(ARGS)

docs: setup  ## Write the reference pages from the code
	$(BIN)/deploy explain --reference docs/reference

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lab: setup  ## Boot lab hosts: make lab HOSTS=2
	$(LAB) up $(HOSTS) --name $(NAME) --inventory .lab/$(NAME)

lab-down: setup  ## Take the lab away
	$(LAB) down --name $(NAME)

demo: setup  ## The main job on a lab host called ct200
	$(BIN)/python -m tests.demo

demo-trial: setup  ## Which profile is best? A trial on a lab host, unattended; ends with its report
	$(BIN)/python -m tests.demo_trial

picture: demo-trial  ## The README's picture, from the report of make demo-trial
	$(BIN)/python -m tests.report.picture .lab/trial-report.html docs/pictures/trial-report.png

clean:  ## Remove what the targets made in this folder
	rm -rf $(VENV) .lab .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
