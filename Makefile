# Each target sets up what it needs, from Python and make alone; a second call finds it there.

PYTHON ?= python3
VENV := .venv
PIP_FLAGS := --quiet --disable-pip-version-check
# Two processes, each with whole files of tests.
PYTEST_FLAGS := --numprocesses 2 --dist loadfile

# The oldest supported onnxruntime, two in the middle and the newest, each with the newest of all else; and the oldest
# of everything.
RUNTIMES := 1.20.1 1.23.2 1.24.4 1.32.0 oldest
REQUIREMENTS_oldest := --constraint tests/oldest.txt

# A package of which the tests read the models alone: what it depends on is large.
REAL_MODELS := silero-vad==6.2.3

# $(call test_set,FOLDER,REQUIREMENTS): what the tests need, into an environment.
define test_set
$(1)/bin/python -m pip install $(PIP_FLAGS) --editable '.[test]' $(2)
$(1)/bin/python -m pip install $(PIP_FLAGS) --no-deps $(REAL_MODELS)
touch $@
endef

.PHONY: help demo test compat web fuzz fuzz-guided soak lint bench bench-check clean $(RUNTIMES:%=compat-%)

help:
	@echo 'make demo    run an INT2 model here, beside what stock onnxruntime says to it'
	@echo 'make test    the tests, on the newest onnxruntime'
	@echo 'make compat  the tests on onnxruntime $(RUNTIMES:oldest=and on the oldest of every dependency)'
	@echo 'make web     models of stock operators alone in node and in a browser'
	@echo 'make fuzz    mutated models, for up to two minutes (fuzz-guided: guided by coverage, for ten)'
	@echo 'make soak    threads, sessions, wrong feeds and interrupts, for ten minutes'
	@echo 'make lint    ruff and mypy'
	@echo 'make bench   the benchmarks; writes docs/benchmarks.md (bench-check: fails where a figure misses its aim)'
	@echo 'make clean   remove the environments and what tools leave behind'

demo: $(VENV)/.package-installed
	$(VENV)/bin/python models/demo.py

test: $(VENV)/.installed
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS)

# Every runtime is tested, also after one has failed.
compat:
	$(MAKE) --no-print-directory --keep-going $(RUNTIMES:%=compat-%)

$(RUNTIMES:%=compat-%): compat-%: .venv-ort-%/.installed
	.venv-ort-$*/bin/python -m pytest $(PYTEST_FLAGS)

web: $(VENV)/.installed web/node_modules/.installed
	$(VENV)/bin/python web/prepare.py build/web
	cd web && node node.mjs ../build/web && node browser.mjs ../build/web

# The same mutants every time: this can be a gate.
fuzz: $(VENV)/.installed
	$(VENV)/bin/python fuzz/mutants.py --count 3000 --seconds 120 --keep build/fuzz/found

# New ones every time: what it finds becomes a test.
fuzz-guided: $(VENV)/.fuzz-installed
	mkdir -p build/fuzz/corpus
	$(VENV)/bin/python fuzz/guided.py -max_total_time=600 -artifact_prefix=build/fuzz/ build/fuzz/corpus fuzz/corpus

soak: $(VENV)/.installed
	$(VENV)/bin/python tools/soak.py --minutes 10

lint: $(VENV)/.lint-installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/.bench-installed .venv-ort-1.23.2/.installed
	$(VENV)/bin/python benchmarks/run.py --older .venv-ort-1.23.2/bin/python

bench-check: $(VENV)/.bench-installed .venv-ort-1.23.2/.installed
	$(VENV)/bin/python benchmarks/run.py --older .venv-ort-1.23.2/bin/python --check

# The package alone, editable: all that the demo needs.
$(VENV)/.package-installed: pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) --editable .
	touch $@

$(VENV)/.installed: $(VENV)/.package-installed
	$(call test_set,$(VENV))

$(VENV)/.fuzz-installed: $(VENV)/.installed
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) --editable '.[fuzz]'
	touch $@

$(VENV)/.lint-installed: $(VENV)/.installed
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) --editable '.[dev]'
	touch $@

$(VENV)/.bench-installed: $(VENV)/.installed
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) --editable '.[bench]'
	touch $@

$(RUNTIMES:%=.venv-ort-%/.installed): .venv-ort-%/.installed: pyproject.toml tests/oldest.txt
	$(PYTHON) -m venv --clear .venv-ort-$*
	$(call test_set,.venv-ort-$*,$(or $(REQUIREMENTS_$*),onnxruntime==$*))

web/node_modules/.installed: web/package.json
	web/setup.sh
	touch $@

clean:
	rm -rf $(VENV) .venv-ort-* web/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +
