# `make` alone lists the targets. Everything happens in .venv; nothing is installed outside of it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STORE ?= ./data
# Processes that run tests; more than cores, since tests wait for a third of their time.
WORKERS ?= 6
# Where the files of `make test` are: memory, if enough of it is free, or disk.
FILES ?= memory
# Rounds of `make test-spark` in which an executor, the broker and the driver are killed.
KILLS ?= 3

# Hundreds of tests start a broker or a command: each would compile all modules anew where an image forbids to keep them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test test-pythons kube-apiserver check conformance lint type docs packages proto map test-sdks test-front test-crossings test-random test-crash test-chaos test-hostile test-java-store test-cluster test-client-rocketmq test-spark test-spark-kills test-spark-s3 console-pictures bench bench-broker bench-records soak-records bench-peers bench-front bench-console bench-store bench-replication clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

.venv/.run: pyproject.toml
	@echo "installing Aerobee and what it needs into .venv: about 40 s the first time, none later"
	@test -x $(BIN)/python || { echo "  1 of 2: an environment of Python"; $(PYTHON) -m venv .venv; }
	@echo "  2 of 2: packages, by pip"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/.dev: pyproject.toml .venv/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs,examples,taskiq,celery,opentelemetry]'
	@touch $@

.venv/.spark: pyproject.toml .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e \
		'.[dev,examples,spark,spark-connect,spark-jre,spark-tables,spark-readers,examples-spark]'
	@touch $@

setup: .venv/.dev ## create .venv with all that development needs

run: .venv/.run ## start a broker on a store under ./data (topics are created on first use)
	@echo "starting a broker on the store $(STORE); Ctrl-C stops it"
	@exec $(BIN)/aerobee serve --dev --store $(STORE)

test: .venv/.dev ## run the tests, in six minutes on two cores; FILES=disk: on a real disk
	AEROBEE_TEST_FILES=$(FILES) $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test-pythons: .venv/.dev ## run the tests on every supported Python of this machine; ARGS=tests/unit/store: a part
	$(BIN)/python -m tests.support.pythons -n $(WORKERS) --dist loadfile $(ARGS)

conformance: .venv/.dev ## go through the protocol's checklist and print how each item stands
	$(BIN)/python -m pytest -q tests/conformance $$($(BIN)/python -m tests.conformance.items)

check: lint type docs test ## what CI runs: lint, types, the site, tests

lint: .venv/.dev ## style, imports, spelling, generated code and pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m aerobee_proto.generate --check
	$(BIN)/python -m tests.support.blocking_wrappers --check
	$(BIN)/python -m tests.support.module_map --check
	$(BIN)/python -m tests.support.limits_page --check
	$(BIN)/python -m tests.support.performance_plots --check
	$(BIN)/python -m tests.support.rocketmq_page --check
	$(BIN)/python -m tests.crossings.page --check
	$(BIN)/python -m tests.support.reference_pages --check

type: .venv/.dev ## strict type check of packages and tests
	$(BIN)/mypy store broker client pipeline proto tests examples

docs: .venv/.dev ## make the site from docs/ in build/site, strictly, and check all of its links
	$(BIN)/python -m tests.support.site

packages: .venv/.dev ## build wheel and source archive in dist/, and try them in an environment of their own
	$(BIN)/python -m tests.support.packages

proto: .venv/.dev ## regenerate the code beside the .proto files
	$(BIN)/python -m aerobee_proto.generate

map: .venv/.dev ## write what is made from other files: the client's blocking classes; pages of rooms, modules, limits; plots
	$(BIN)/python -m tests.support.blocking_wrappers
	$(BIN)/python -m tests.support.module_map
	$(BIN)/python -m tests.support.limits_page
	$(BIN)/python -m tests.support.performance_plots
	$(BIN)/python -m tests.support.rocketmq_page
	$(BIN)/python -m tests.crossings.page
	$(BIN)/python -m tests.support.reference_pages

kube-apiserver: .venv/.dev ## build Kubernetes' API server for the tests of leases (needs Go; minutes, once)
	$(BIN)/python -m tests.support.programs

test-sdks: .venv/.dev ## the released SDKs of Python, Node.js, Java and Go; says which were left out, and why
	AEROBEE_TOOLCHAINS=1 $(BIN)/python -m pytest -q -m sdk -p tests.support.sdk_summary --timeout=300 tests

test-front: .venv/.dev ## the front end with h2spec and gRPC's interoperability client (Go), and all else on grpcio, too
	AEROBEE_TOOLCHAINS=1 $(BIN)/python -m pytest -q --timeout=600 tests/integration/test_front_tools.py
	AEROBEE_TEST_FRONT=grpcio $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile tests/integration tests/conformance

test-crash: .venv/.dev ## the long crash tests: 500 kills and every crash point, with fresh seeds (more than an hour)
	AEROBEE_FRESH_SEEDS=1 AEROBEE_CRASH_CYCLES=500 $(BIN)/python -m pytest -q -m crash -n $(WORKERS) --timeout=14400

test-crossings: .venv/.dev ## every feature in every state of a broker, each pair in a broker of its own: docs/crossings.md
	AEROBEE_CROSSINGS=alone $(BIN)/python -m pytest -q -n $(WORKERS) --timeout=600 tests/crossings

test-random: .venv/.dev ## the tests with random examples, with fresh seeds and more examples
	AEROBEE_FRESH_SEEDS=1 AEROBEE_CRASH_CYCLES=20 AEROBEE_MODEL_EXAMPLES=$${AEROBEE_MODEL_EXAMPLES:-500} \
		$(BIN)/python -m pytest -q -n $(WORKERS) --timeout=14400 tests/property tests/model $$(grep -rl '^from hypothesis' tests/unit)

test-chaos: .venv/.dev ## producers, consumers and disturbances, checked: an hour each with one broker, with fail-over, beside replicas of two releases of RocketMQ; hostile clients
	AEROBEE_FRESH_SEEDS=1 AEROBEE_CHAOS_SECONDS=$${AEROBEE_CHAOS_SECONDS:-3600} $(BIN)/python -m pytest -q -s tests/chaos
	AEROBEE_FRESH_SEEDS=1 AEROBEE_CHAOS_SECONDS=$${AEROBEE_CHAOS_SECONDS:-3600} AEROBEE_CLUSTER=1 \
		$(BIN)/python -m pytest -q -s -rs tests/cluster/test_java_chaos.py
	AEROBEE_MODEL=1 $(BIN)/python -m pytest -q --timeout=3600 tests/unit/broker/replication/test_lease_model.py
	AEROBEE_FRESH_SEEDS=1 AEROBEE_HOSTILE_ROUNDS=20 AEROBEE_INPUT_COUNT=500 \
		$(BIN)/python -m pytest -q -s --timeout=3600 tests/integration/test_bad_input.py tests/integration/test_hostile_*.py

test-spark: .venv/.spark ## the Spark pipeline; installs PySpark and a Java (some 500 MB the first time); KILLS=1: fewer kills
	AEROBEE_SPARK=1 AEROBEE_SPARK_KILL_ROUNDS=$(KILLS) $(BIN)/python -m pytest -q -W default --timeout=600 tests/spark

test-spark-kills: .venv/.spark ## thirty rounds of killed executors, brokers and drivers: a topic into a topic, files and tables (an hour)
	AEROBEE_SPARK=1 AEROBEE_SPARK_KILL_ROUNDS=30 $(BIN)/python -m pytest -q -s -W default --timeout=36000 tests/spark/test_kills.py

test-spark-s3: .venv/.spark ## tables in buckets of a real S3 server, versitygw (needs Go; minutes to build it, once)
	@test -x $(BIN)/versitygw || GOBIN=$(CURDIR)/$(BIN) go install github.com/versity/versitygw/cmd/versitygw@latest
	PATH="$(CURDIR)/$(BIN):$$PATH" AWS_ACCESS_KEY_ID=aerobee AWS_SECRET_ACCESS_KEY=only-for-tests AWS_REGION=us-east-1 AEROBEE_SPARK=1 AEROBEE_S3=1 \
		$(BIN)/python -m pytest -q -W default --timeout=600 tests/spark/test_s3_tables.py

test-hostile: .venv/.dev ## hostile input of every kind, named and drawn at random, and every call at its limits, for minutes
	AEROBEE_HOSTILE_ROUNDS=$${AEROBEE_HOSTILE_ROUNDS:-10} \
		$(BIN)/python -m pytest -q -s --timeout=3600 tests/integration/test_one_hostile_client.py tests/integration/test_hostile_input.py

test-java-store: .venv/.dev ## RocketMQ's own store and ours on the same directories (needs Java and Maven)
	AEROBEE_JAVA_STORE=1 $(BIN)/python -m pytest -q tests/java_store

test-cluster: .venv/.dev ## released Java clients, servers and mqadmin of RocketMQ with ours; clients through a fail-over (needs Java, Maven, etcd)
	AEROBEE_CLUSTER=1 $(BIN)/python -m pytest -q -rs tests/cluster

test-client-rocketmq: .venv/.dev ## our client against Apache RocketMQ 5 from its artefacts, and its POP consumers through a move (needs Java and Maven)
	AEROBEE_ROCKETMQ=1 $(BIN)/python -m pytest -q -s tests/cluster/test_client_on_rocketmq.py tests/cluster/test_pop_migration.py

console-pictures: .venv/.dev ## pictures of every page of the console into build/console, and that of the documentation (needs Chromium)
	$(BIN)/python -m tests.console.pictures $(ARGS)

bench-store: .venv/.dev ## the benchmarks of the store alone, in minutes; ARGS=--large: also 10 GiB; ARGS=--short: seconds
	$(BIN)/python -m tests.benchmarks.store $(ARGS)

bench-replication: .venv/.dev ## sends that wait for a replica beside sends that do not, and the rate of catching up
	$(BIN)/python -m tests.benchmarks.replication $(ARGS)

bench-broker: .venv/.dev ## the benchmarks of the broker alone, seven minutes; ARGS=--short: seconds; ARGS=delays: one part
	$(BIN)/python -m tests.benchmarks.broker $(ARGS)

bench-records: .venv/.dev ## the benchmarks of RecordService, a minute; ARGS=--short: seconds; ARGS=append: one part
	$(BIN)/python -m tests.benchmarks.records $(ARGS)

bench-spark: .venv/.spark ## the benchmarks of the pipeline, ten minutes and 10 GB of disk; ARGS=--short: a minute; ARGS=sink: one part
	$(BIN)/python -m tests.benchmarks.spark $(ARGS)

soak-records: .venv/.dev ## ten minutes of durable append beside a reader: memory, loop delay, tail latency; ARGS="--seconds 60"
	$(BIN)/python -m tests.benchmarks.soak_records $(ARGS)

bench-peers: .venv/.dev ## our durable appends beside Kafka's (needs Java and Maven) and Redis's, a minute or two
	$(BIN)/python -m tests.benchmarks.peers $(ARGS)

bench-front: .venv/.dev ## both fronts, with an empty handler and with sends: calls and processor time, in two minutes (with Go)
	$(BIN)/python -m tests.benchmarks.broker front $(ARGS)

bench-console: .venv/.dev ## the console with 5,000 topics in Chromium: first paint, and its share of a core while idle, in two minutes
	$(BIN)/python -m tests.benchmarks.console $(ARGS)

bench: .venv/.dev ## every benchmark, with the figures of this machine's disk beside it
	$(BIN)/python -m tests.benchmarks

clean: ## remove what was built
	rm -rf .venv .venv-pythons build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
