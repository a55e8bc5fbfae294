# The only entry. On a fresh Debian (as root or with sudo) and on macOS it finds or installs what it needs; the second time is fast.
#   make run     a gateway with a built-in mock provider and the embedded ledger; prints a request to paste (PORT=8080)
#   make test    ruff, mypy and every test, against a real Redis and a real PostgreSQL
VENV ?= .venv
PORT ?= 8080
BIN = $(VENV)/bin
SUDO = $$([ "$$(id -u)" = 0 ] || echo sudo)
# Versions come from the locks alone: with hashes, and without the isolated build that would fetch an unpinned backend.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
UV_VERSION = 0.13.9
COMPILE = .make/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url

.PHONY: run test cov check demo bench soak rate-accuracy shared-or-split overshoot failover outage limited-key plots prices e2e-llama lock clean redis postgres faketime

run: $(VENV)/run.stamp
	@PORT=$(PORT) $(BIN)/sluicegate serve --mock

demo: $(VENV)/run.stamp
	@$(BIN)/sluicegate demo

test: check redis postgres
	@$(BIN)/python -m pytest -n 2 --dist loadfile  # most of the time they wait: for processes to start, for time to pass

# Every test again, with what it reaches: fails where a module that the cap depends on is below the floor; writes the table in docs/safety.md.
cov: $(VENV)/test.stamp redis postgres
	@rm -rf .make/coverage && mkdir -p .make/coverage
	@export COVERAGE_FILE=$(CURDIR)/.make/coverage/data; $(BIN)/python -m coverage run -m pytest -n 2 --dist loadfile && \
	    $(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage json --quiet -o .make/coverage/report.json
	@$(BIN)/python tests/safety_table.py .make/coverage/report.json docs/safety.md

check: $(VENV)/test.stamp
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(VENV)/test.stamp redis faketime
	@$(BIN)/python bench/overshoot.py --quick
	@$(BIN)/python bench/budget_two_gateways.py
	@$(BIN)/python bench/rate_accuracy.py --quick
	@for tool in nginx wrk; do command -v $$tool >/dev/null || { echo "$$tool is needed by bench/overhead.py (Debian: nginx-light, wrk)" >&2; exit 1; }; done
	@$(BIN)/python bench/overhead.py

# MINUTES and SEED, as in `make soak MINUTES=5 SEED=7`.
soak: $(VENV)/test.stamp redis faketime
	@$(BIN)/python bench/soak.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

rate-accuracy: $(VENV)/test.stamp redis
	@$(BIN)/python bench/rate_accuracy.py --json bench/results/rate-accuracy.json

shared-or-split: $(VENV)/test.stamp redis
	@$(BIN)/python bench/shared_vs_split.py --json bench/results/shared-or-split.json --page docs/shared-or-split.md

overshoot: $(VENV)/test.stamp redis faketime
	@$(BIN)/python bench/overshoot.py $(OPTIONS)

failover: $(VENV)/test.stamp redis
	@$(BIN)/python bench/failover.py $(OPTIONS)

outage: $(VENV)/test.stamp redis
	@$(BIN)/python bench/outage.py $(OPTIONS)

limited-key: $(VENV)/test.stamp redis
	@$(BIN)/python bench/limited_key.py $(OPTIONS)

plots: $(VENV)/bench.stamp
	@$(BIN)/python bench/plot.py $(lastword $(sort $(wildcard bench/results/overshoot-*.json)))

# The bundled catalogue anew, from what genai-prices publishes; what changes is printed first.
prices: $(VENV)/run.stamp
	@$(BIN)/sluicegate prices apply --latest --all --to src/sluicegate/prices/catalogue.json --config src/sluicegate/example.yaml

# Real llama.cpp, compiled when first asked for (some minutes); LLAMA_PYTHON names a Python that has requirements/llama.txt already.
e2e-llama: $(VENV)/test.stamp
	@if [ -z "$$LLAMA_PYTHON" ] && [ ! -e .make/llama/done ]; then \
	    command -v c++ >/dev/null || { command -v apt-get >/dev/null && { $(call apt,build-essential); }; } || \
	        { echo "a C++ compiler is needed and was not found on PATH" >&2; exit 1; }; \
	    echo "building llama.cpp in .make/llama"; \
	    $(BIN)/python -m venv .make/llama && .make/llama/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/llama.txt && \
	        touch .make/llama/done; \
	fi
	@$(BIN)/python bench/e2e_llama.py

lock:
	@[ -x .make/lock/bin/uv ] || { python3 -m venv .make/lock && .make/lock/bin/python -m pip install --quiet uv==$(UV_VERSION); }
	@$(COMPILE) $(UPGRADE) pyproject.toml requirements/build.in --output-file requirements/run.lock
	@$(COMPILE) $(UPGRADE) pyproject.toml requirements/build.in --group dev --constraint requirements/run.lock --output-file requirements/test.lock
	@$(COMPILE) $(UPGRADE) pyproject.toml --group bench --constraint requirements/test.lock --output-file requirements/bench.lock

clean:
	@rm -rf $(VENV) .make build dist data .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/run.stamp: $(VENV)/bin/python requirements/run.lock pyproject.toml
	@echo "installing what the gateway needs into $(VENV)"
	@$(INSTALL) --require-hashes -r requirements/run.lock
	@$(INSTALL) --no-build-isolation -e .
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp requirements/test.lock
	@echo "installing what the tests need into $(VENV)"
	@$(INSTALL) --require-hashes -r requirements/test.lock
	@touch $@

$(VENV)/bench.stamp: $(VENV)/test.stamp requirements/bench.lock
	@$(INSTALL) --require-hashes -r requirements/bench.lock
	@touch $@

# A Python of 3.11 or newer that can make environments (Debian ships the two apart). The distribution's own goes first: it is built with profile-guided
# optimisation, which one compiled by a version manager seldom is, and the gateway takes a tenth less CPU on it.
$(VENV)/bin/python:
	@find_python() { for p in /usr/bin/python3 python3.13 python3.12 python3.11 python3.14 python3; do \
	    $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; return; }; done; }; \
	python=$$(find_python); \
	if [ -z "$$python" ] && command -v apt-get >/dev/null; then $(call apt,python3 python3-venv); python=$$(find_python); fi; \
	if [ -z "$$python" ]; then echo "Python 3.11 or newer (with venv) is needed and was not found on PATH" >&2; exit 1; fi; \
	$$python -m venv $(VENV)

redis:
	@command -v redis-server >/dev/null || { command -v apt-get >/dev/null && { $(call apt,redis-server); }; } || \
	    { echo "redis-server is needed by the tests and was not found on PATH" >&2; exit 1; }

# The programs are enough: the tests make a cluster of their own. Debian keeps them off PATH.
postgres:
	@find_initdb() { ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null || command -v initdb; }; \
	find_initdb >/dev/null || { command -v apt-get >/dev/null && { $(call apt,postgresql); }; } || \
	    { echo "PostgreSQL (initdb) is needed by the tests and was not found on PATH" >&2; exit 1; }

# For gateways whose clocks are wrong.
faketime:
	@ls /usr/lib/*/faketime/libfaketime.so.1 /usr/lib/faketime/libfaketime.so.1 2>/dev/null | grep -q . || \
	    { command -v apt-get >/dev/null && { $(call apt,libfaketime); }; } || \
	    { echo "libfaketime is needed for clocks that differ and was not found" >&2; exit 1; }

# The package lists are fetched only where what is there does not suffice.
apt = echo "installing $(1)"; get="$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get"; $$get install -qq -y $(1) >/dev/null 2>&1 || \
    { $$get update -qq && $$get install -qq -y $(1) >/dev/null; }
