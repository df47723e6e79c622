# Verbs for a person and for CI alike. Each does its own setup; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

ENV := .native/venv-cpu
RUN := scripts/run-python.sh

.PHONY: help setup demo serve-demo validate test lint check docs-check kernels patch nix nix-check clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .native/venv-cpu: pinned vLLM, our patch, our extension, test tools
	@scripts/build-native.sh cpu

demo: setup ## serve the tiny checkpoint on the CPU, validate it, print what it did, stop
	@scripts/demo.sh

serve-demo: setup ## serve the tiny checkpoint until Ctrl-C
	@scripts/serve-demo.sh

validate: setup ## check a running server against the recipe that it serves
	@scripts/validate-api.sh

test: setup ## run every test (no network needed after setup); one process for those that start servers
	@$(ENV)/bin/python -m pytest -n 2 --dist loadscope

lint: setup ## ruff, shellcheck and a dry run of every recipe
	@scripts/lint.sh

check: setup lint docs-check ## lint, and fail on drift of the patch, the locks, the pins, the documents and the kernels
	@$(RUN) patch/tool.py --check
	@$(RUN) scripts/lib/lockfile.py cpu --check
	@$(RUN) scripts/lib/lockfile.py cuda --check
	@$(RUN) scripts/lib/pin_leaks.py
	@scripts/kernels.sh --check

docs-check: setup ## hold the documents against the tree: commands, links, numbers, messages, figures
	@$(ENV)/bin/python scripts/lib/docs_check.py

kernels: ## compile the CUDA kernels to cubins with the pinned compiler
	@scripts/kernels.sh

patch: ## regenerate patch/ from patch/series/ and the pinned source
	@$(RUN) patch/tool.py

nix: setup ## get Nix: from PATH, else Debian's package into the cache, without root
	@$(ENV)/bin/python nix/tests/nix_host.py --obtain

nix-check: nix ## build what can be built of the flake without nixpkgs, and show its gates closing
	@$(ENV)/bin/python -m pytest -q scripts/tests/test_nix_parts.py scripts/tests/test_nix_flake.py

clean: ## remove .native/ (environments, wheels, logs); downloads stay in the cache
	@scripts/clean.sh
