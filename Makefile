# The commands of this project. Each sets up what is missing first: see scripts/setup.sh.

PYTHON := .venv/bin/python
BIN := .venv/bin

# The tests start hundreds of Python processes. Each compiles all that it imports where the environment tells it to keep nothing.
unexport PYTHONDONTWRITEBYTECODE

# Each with a Spark session of its own. One more than there are cores: they wait for JVMs, for locks and for the disk.
SIDE_BY_SIDE := --numprocesses=3 --dist=loadfile

# The tests of pages need a browser, which no package registry has.
CHROMIUM := $(shell command -v chromium)

# What installs Azurite, the server of Azure's storage.
NPM := $(shell command -v npm)

# What builds versitygw, the server of S3 at night.
GO := $(shell command -v go)

# What sets up the nightly tests of Google Cloud Storage.
GOOGLE := $(and $(GO),$(shell command -v mvn))

# What the older versions are in: constraints/$(point).txt and .venvs/$(point).
OLDER := spark-4.0 spark-4.1

# What else is tried at night with the oldest: all kinds of tables, Kafka, and killed drivers.
OLDEST := spark-4.0
OLDEST_AT_NIGHT := tests/spark/test_table_features.py tests/spark/test_kafka_sources.py tests/system/test_sigkill.py

.DEFAULT_GOAL := help
.PHONY: help setup warm packages check test matrix demo bench nightly screenshots dist format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## Run the main job through Airflow on the flights of 2013, and show what it left
	@$(PYTHON) -m scripts.demo

check: packages ## Lint, types, import contracts and the fast tests (no JVM); COVERAGE=1: also the lines that they run
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTHON) -m pytest $(SIDE_BY_SIDE) $(if $(COVERAGE),--cov) -m fast

test: check warm ## Run every test that a change must pass: those of `make check`, then all others
	@$(if $(CHROMIUM),,echo "Without Chromium the tests of pages in a browser are left out. Debian, Ubuntu: apt install chromium")
	@$(if $(NPM),,echo "Without npm the tests of Azure's storage are left out. Debian, Ubuntu: apt install npm")
	$(PYTHON) -m pytest $(SIDE_BY_SIDE) --durations=30 -m "not fast and not nightly and not matrix$(if $(CHROMIUM),, and not browser)$(if $(NPM),, and not azure)"

matrix: setup $(OLDER:%=sample-%) ## Run a sample of the tests with older versions, and take a home from each to the next
	$(PYTHON) -m pytest -m matrix tests/matrix

# Older releases raise warnings of their own.
sample-%:
	@scripts/setup.sh matrix $*
	.venvs/$*/bin/python -m pytest $(SIDE_BY_SIDE) -W default -m "every_version and not nightly and not stores" $$(grep -rl --include='*.py' mark.every_version tests)

nightly: warm ## Run every test there is, with more examples; hours
	@$(if $(GO),,echo "Without Go the tests of S3 in versitygw are left out. Install it: https://go.dev/dl")
	@$(if $(GOOGLE),,echo "Without Go and Maven the tests of Google Cloud Storage are left out. Debian, Ubuntu: apt install maven")
	@scripts/setup.sh servers
	$(MAKE) matrix
	@scripts/setup.sh night $(OLDEST)
	.venvs/$(OLDEST)/bin/python -m pytest $(SIDE_BY_SIDE) -W default -m "not matrix and not stores and not hdfs" $(OLDEST_AT_NIGHT)
	SPARK_TESTS_COMPILE=1 $(PYTHON) -m pytest -m "not matrix$(if $(CHROMIUM),, and not browser)$(if $(NPM),, and not azure)$(if $(GO),, and not versitygw)$(if $(GOOGLE),, and not google)" --hypothesis-profile=nightly --randomly-seed=default

bench: warm ## Measure, and compare with Spark and Delta alone; QUICK=1: eight minutes
	@scripts/setup.sh servers
	$(PYTHON) -m benchmarks $(if $(QUICK),--quick)

screenshots: setup ## Take the screenshots of docs again
	SPARK_TESTS_SCREENSHOTS=docs/how-to/images $(PYTHON) -m pytest -m nightly -k screenshots tests/airflow/pages/test_pipelines_page_in_a_browser.py

dist: packages ## Build the wheel and the sdist, and check them in an empty environment
	@scripts/dist.sh

format: packages ## Format, and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: ## Set up everything that is missing: packages, and Delta's jars for Spark
	@scripts/setup.sh everything

warm: ## Set up everything, what the tests need, and what every start of Spark loads
	@scripts/setup.sh warm

packages: ## Set up the packages only
	@scripts/setup.sh packages

clean: ## Remove what the commands above made, the virtual environment too
	rm -rf .venv .venvs build dist setup.log .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
