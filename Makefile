# `make` alone lists the targets. Every target sets up what it needs; a second run finds it in place.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
LANES := unit lua sql conformance dags spark quality integration property chaos ui
# Named as folders: by their marks, Airflow and Spark would be imported in order to find that none of it is wanted.
FAST := lua sql unit
CODE := $(wildcard src dags plugins release spark_jobs tests benchmarks scripts)
# Further words for pytest: make test-lua ARGS="-k import -x"
ARGS ?=
PYTEST := $(BIN)/python -m pytest
# Tests wait for servers and for Airflow: with three files at a time two cores have nothing to do for 4 % of the time, with
# two for 13 %. Each process has servers of its own, and a Java, some 4 GiB: where there is less, it is two at a time.
# tests/conftest.py puts the longest files first.
WORKERS ?= $(shell awk '/^MemTotal/ { print ($$2 < 14000000) ? 2 : 3 }' /proc/meminfo 2>/dev/null || echo 2)
IN_PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Shows what a command says only when it fails.
quietly = said=$$($(1) 2>&1) || { printf '%s\n' "$$said"; exit 1; }

ERASE := from queuekeeper.config import Settings; from queuekeeper.embedded import erase; erase(Settings())

# Tests start hundreds of processes that import the same two thousand modules (Airflow's): they are compiled once, whatever
# the shell says.
unexport PYTHONDONTWRITEBYTECODE

# The private servers' data, logs and passwords stay inside the checkout.
export QUEUEKEEPER_HOME := $(CURDIR)/var
export PATH := $(CURDIR)/$(BIN):$(PATH)

##@ Try it

.PHONY: demo
demo: setup ## A day of the product in Airflow: move, judge, mend (DEMO_EXIT=1, DEMO_APPROVE=ui)
	@$(BIN)/queuekeeper demo

.PHONY: up
up: setup ## Start the private PostgreSQL, Redis and Airflow
	@$(BIN)/queuekeeper up --airflow
	@echo; echo "For commands on these servers: export QUEUEKEEPER_HOME=$(QUEUEKEEPER_HOME) PATH=$(CURDIR)/$(BIN):\$$PATH"

.PHONY: status
status: setup ## Show the private servers
	@$(BIN)/queuekeeper status

.PHONY: down
down: ## Stop the private servers; their data stay
	@if [ -x $(BIN)/queuekeeper ]; then $(BIN)/queuekeeper down; fi

##@ Check it

.PHONY: test
test: setup-tests lint ## Lint, then all test lanes, but for what test-nightly adds: what decides whether a change is merged
	@$(PYTEST) $(IN_PARALLEL) $(ARGS)

.PHONY: test-nightly
test-nightly: setup-tests lint ## All that there is: also Redis 7, each store's other form, an environment for every extra
	@$(PYTEST) $(IN_PARALLEL) --nightly $(ARGS)

.PHONY: test-fast
test-fast: setup-tests lint ## Lint, then lua, sql and unit on one server without what is slow: under two minutes
	@$(PYTEST) $(IN_PARALLEL) -m "not slow" $(FAST:%=tests/%) $(ARGS)

# A Spark starts with half of the work when it finds what another one has read of 280 jars.
var/spark/classes.jsa: tests/spark_java.py requirements.lock | setup-tests
	@$(call quietly,$(BIN)/python -m tests.spark_java)

# mypy uses one processor: what else takes long is done beside it.
CHECKS := check-types var/linted-sql check-imports check-lua
test test-nightly: CHECKS += var/spark/classes.jsa

.PHONY: lint
lint: setup-tests ## Style, types, import rules, Lua and SQL
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --quiet --check $(CODE)
	@$(MAKE) -j 2 $(CHECKS)
	@echo "lint: clean"

.PHONY: check-types
check-types: setup-tests
	@$(BIN)/mypy --no-error-summary

.PHONY: check-imports
check-imports: setup-tests
	@$(call quietly,$(BIN)/lint-imports)

.PHONY: check-lua
check-lua: setup-tests
	@rm -rf var/lua && $(call quietly,$(BIN)/python -m queuekeeper.lua --bundle var/lua)
	@$(call quietly,luacheck --config .luacheckrc var/lua)

# Reading all SQL takes longer than all other lint: it is read again when some of it has changed.
var/linted-sql: $(shell find sql -name '*.sql') .sqlfluff requirements.lock | setup-tests
	@$(call quietly,$(BIN)/sqlfluff lint --disable-progress-bar --processes 0 sql)
	@mkdir -p $(@D) && touch $@

.PHONY: bench
bench: setup ## Measure the copy against its limits (benchmarks/)
	@$(BIN)/python benchmarks/backfill.py $(ARGS)

.PHONY: bench-online
bench-online: setup ## Measure saving against the server's limit and others (ARGS="--rounds 5", or --profile)
	@$(BIN)/python benchmarks/online.py $(ARGS)

.PHONY: bench-profile
bench-profile: setup ## Measure a profile of queues: speed, cost, what others notice (ARGS="--memory")
	@$(BIN)/python benchmarks/profile_queues.py $(ARGS)

.PHONY: bench-snapshot
bench-snapshot: setup ## Measure a profile of an RDB file beside that of its server (ARGS="--memory")
	@$(BIN)/python benchmarks/snapshot.py $(ARGS)

.PHONY: bench-events
bench-events: setup ## Measure the event broker against plain inserts and a SKIP LOCKED queue (ARGS="--rounds 3")
	@$(BIN)/python benchmarks/events.py $(ARGS)

.PHONY: bench-compacted
bench-compacted: setup ## Measure compacted queues against plain commands (ARGS="--rounds 5 --rows 200000")
	@$(BIN)/python benchmarks/compacted.py $(ARGS)

.PHONY: bench-fanout
bench-fanout: setup ## Measure fan-out queues beside RedisQ's commands and Redis Streams (ARGS="--rounds 5 --json")
	@$(BIN)/python benchmarks/fanout.py $(ARGS)

.PHONY: bench-peers
bench-peers: setup ## Measure fan-out queues beside other job queues, and kill all their workers (ARGS="--rounds 2 --kills 10")
	@$(BIN)/python benchmarks/peers.py $(ARGS)

.PHONY: bench-event-peers
bench-event-peers: setup ## Measure the event broker beside other queues on PostgreSQL, and kill all their workers (ARGS="--rounds 2")
	@$(BIN)/python benchmarks/event_peers.py $(ARGS)

.PHONY: bench-event-growth
bench-event-growth: setup ## Measure the event broker beside what is stored, and beside a held snapshot (ARGS="--held-s 600")
	@$(BIN)/python benchmarks/event_growth.py $(ARGS)

.PHONY: bench-cleanup
bench-cleanup: setup ## Measure a cleanup: speed, what others notice (ARGS="--messages 1000000 --sessions 100000")
	@$(BIN)/python benchmarks/cleanup.py $(ARGS)

.PHONY: bench-online-migration
bench-online-migration: setup ## Measure fences and latencies of a migration under load (ARGS="--clients 5000 --json")
	@$(BIN)/python benchmarks/online_migration.py $(ARGS)

.PHONY: bench-growth
bench-growth: setup ## Measure how each job grows with messages (ARGS="--messages 100000 1000000 10000000 --executors 1 2 4")
	@$(BIN)/python benchmarks/growth.py $(ARGS)

.PHONY: bench-imports
bench-imports: setup ## Measure what importing each store takes (ARGS="--rounds 20")
	@$(BIN)/python benchmarks/imports.py $(ARGS)

##@ One lane at a time

.PHONY: $(LANES:%=test-%)
$(LANES:%=test-%): test-%: setup-tests
	@$(PYTEST) -m $* $(ARGS)

# Each in an environment of its own, .venv-3.13 and so on.
PYTHONS ?= 3.12 3.13

.PHONY: test-pythons
test-pythons: ## Unit, lua, sql and conformance on newer Pythons (PYTHONS="3.13")
	@set -e; for version in $(PYTHONS); do \
		command -v python$$version >/dev/null || { echo "there is no python$$version: install it, or leave it out of PYTHONS" >&2; exit 2; }; \
		QUEUEKEEPER_VENV=.venv-$$version PYTHON=python$$version scripts/setup tests; \
		PATH=$(CURDIR)/.venv-$$version/bin:$$PATH .venv-$$version/bin/python -m pytest $(IN_PARALLEL) \
			tests/unit tests/lua tests/sql tests/conformance $(ARGS); \
	done

# make test plays one of these runs, make test-nightly five; a failed one is met again by ONLINE_SEEDS=1 ONLINE_FIRST_SEED=number.
NIGHTLY_SEEDS ?= 200

# Those of simulated migrations: a failed one is met again, with its history, by SIMULATED_SEEDS=1 SIMULATED_FIRST_SEED=number.
NIGHTLY_SIMULATED ?= 2000

# Those of PYTHONS that this machine has.
NEWER_PYTHONS = $(strip $(foreach version,$(PYTHONS),$(if $(shell python$(version) -c 'print(1)' 2>/dev/null),$(version))))

.PHONY: prove
prove: setup ## Search all states of the models in proofs/, and find that each of their mutants breaks a promise (ARGS=FanoutLog)
	@$(BIN)/python -m scripts.prove $(ARGS)

.PHONY: nightly
nightly: setup-tests ## 200 migrations under load, somebody killed in each, and traces (NIGHTLY_SEEDS=20), 2,000 simulated ones, one by seconds, newer Pythons
	@ONLINE_SEEDS=$(NIGHTLY_SEEDS) $(PYTEST) tests/chaos/test_online_migration_survives.py -n 2 --dist load $(ARGS)
	@TRACE_SEEDS=$(NIGHTLY_SEEDS) $(PYTEST) tests/chaos/test_traces.py -n 2 --dist load $(ARGS)
	@SIMULATED_SEEDS=$(NIGHTLY_SIMULATED) $(PYTEST) tests/chaos/test_simulated_sessions.py -n 2 --dist load $(ARGS)
	@$(MAKE) bench-online-migration ARGS=
	@$(MAKE) test-pythons PYTHONS="$(NEWER_PYTHONS)" ARGS=
	@echo "newer Pythons tested: $(or $(NEWER_PYTHONS),none)"

##@ House-keeping

.PHONY: setup
setup: ## Create .venv with the locked packages
	@scripts/setup

.PHONY: setup-tests
setup-tests: ## The same, and the programs that tests need: Chromium, luacheck, Mosquitto, optionally Redis
	@scripts/setup tests

.PHONY: format
format: setup ## Let ruff and sqlfluff put the files in shape
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

.PHONY: docs
docs: setup ## Build the documentation site, with its reference, into var/docs/site
	@$(BIN)/python -m scripts.build_docs

.PHONY: pictures
pictures: setup-tests ## Take the pictures of README and docs anew, of the pages and the data that tests walk
	@$(call quietly,$(PYTEST) tests/ui/test_plugin_pages.py -k picture_of_the_documents)
	@cp var/pictures/docs/*.png docs/images/

.PHONY: lock
lock: setup ## Resolve the dependencies anew into requirements.lock, with hashes and without addresses
	@$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --override overrides.txt \
		--generate-hashes --no-emit-index-url --annotation-style line --no-header --quiet --upgrade -o requirements.lock

.PHONY: licences
licences: setup ## Write docs/licences.md; fails when a locked package has a licence that pyproject.toml does not allow
	@$(BIN)/python -m release.licences

# Asks the advisories of osv.dev, which CI does not reach: that is why `make test` only shows that this works.
.PHONY: audit
audit: setup ## Ask osv.dev, over the network, for known vulnerabilities of what is locked
	@$(BIN)/pip-audit --requirement requirements.lock --disable-pip --vulnerability-service osv --progress-spinner off $(ARGS)

.PHONY: release
release: setup ## Build source, wheel and their checksums into dist/ (SOURCE_DATE_EPOCH, ARGS=--trial)
	@$(BIN)/python -m release $(ARGS)

.PHONY: clean
clean: down ## Stop the private servers and remove their data, reports, caches and built files; .venv stays
	@if [ -x $(BIN)/python ]; then $(BIN)/python -c "$(ERASE)"; fi
	@rm -rf var dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z][a-z-]*:.*## / { split($$1, name, ":"); printf "  make %-22s %s\n", name[1], $$2 } \
		/^\$$\(LANES/ { printf "  make test-LANE              $(LANES)\n" }' $(MAKEFILE_LIST)
	@echo
