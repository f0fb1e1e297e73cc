# SPDX-License-Identifier: Apache-2.0
# `make run` shows Large Model Support at work; `make test` runs the tests. Both set up what they need.
PYTHON ?= python3
TAG ?= v2.6.0
TF_TAG ?= v2.14.1
SHARD ?= 1/1
# --record: what passed goes into tests/passed.toml, which `lmsbuild tags` shows.
RECORD ?=
# Of test-negative, --missing: only safeguards that no record shows to bite.
ONLY ?=
# Processes for the tests of the tool; they run beside the suites, which have two of their own.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEVELOP := $(VENV)/.develop
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# A machine that forbids bytecode has every program compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup develop run wheels test test-tool test-containers test-suites test-fast test-dry test-front test-full test-negative test-sanitized test-old lint style series bench bench-core bench-ops bench-tool bench-survey bench-dry sweep patches clean help

help:
	@echo "make setup          .venv/bin/lmsbuild, and no more"
	@echo "make develop        what the tests and linters need besides"
	@echo "make run            train a model that does not fit the device, without and with LMS"
	@echo "make test           the tests: lint, tool, engine, simulated device, regression (minutes)"
	@echo "make test-fast      what needs no network (minutes), and the cases dry where a wheel is there"
	@echo "make test-dry       what of the regression suites is not about values, on the dry device"
	@echo "make test-front     TensorFlow's wheels for GPUs, on the dry device"
	@echo "make test-full      the whole matrices; SHARD=I/N runs one part, RECORD=--record notes it"
	@echo "make test-negative  every safeguard turned off in turn: its test must fail (SHARD, RECORD, ONLY=--missing)"
	@echo "make test-sanitized  suites under the sanitizers of addresses, undefined behaviour and threads (an hour)"
	@echo "make test-old       old tags, from a clone: LMSBUILD_MIRROR=<clone> make test-old"
	@echo "make bench          what trains, and how fast, against doing without and two other ways; then bench-tool"
	@echo "make bench-core     what the core costs: host memory reserved, time to make room"
	@echo "make bench-ops      what an operator costs: never turned on, on, and off again"
	@echo "make bench-tool     what the tool's short commands cost, beside what they may cost"
	@echo "make bench-survey   a survey of eight tags in a clone of true size"
	@echo "make bench-dry      the same as bench at true sizes without a GPU, into docs/benchmarks/dry"
	@echo "make sweep          stock, plug-in and patch on the simulated device, into docs/plugin.md"
	@echo "make patches        regenerate the runtime patch from lms/"

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; install Python 3.10 to 3.13 or set PYTHON="; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3,10) <= sys.version_info[:2] <= (3,13))' || { echo "error: $(PYTHON) is $$($(PYTHON) -V), and Python 3.10 to 3.13 is needed; set PYTHON="; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "error: no venv module; on Debian: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV): pip installs what lmsbuild needs (a minute)"
	@$(PIP) -e . 'dependency-groups>=1.3,<2'
	@touch $@

# What the tests need besides.
$(DEVELOP): $(STAMP)
	@echo "setting up $(VENV) for the tests"
	@$(PIP) $$($(BIN)/python -m dependency_groups dev)
	@touch $@

setup: $(STAMP)

develop: $(DEVELOP)

run: $(STAMP)
	$(BIN)/lmsbuild run $(TAG)

lint: style series

style: $(DEVELOP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy tools/lmsbuild tools/simcuda tools/lmsbench lms/tflms tests/lmsbuild
	$(BIN)/zizmor --offline --no-progress --quiet ci/github/*.yml
	$(BIN)/actionlint -shellcheck $(BIN)/shellcheck ci/github/*.yml
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cc')

series: $(STAMP)
	$(BIN)/lmsbuild verify --all
	$(BIN)/lmsbuild lint --all
	$(BIN)/lmsbuild matrix --check

# The cases' dry twins need a wheel, which is there once `make test` has run.
TWINS := work/pytorch-$(TAG)/env-test-lms

test-fast: lint
	$(BIN)/python -m pytest -m 'not net and not engine and not slow and not default' tests/lmsbuild tests/engine tests/plugin tests/tflms
	@if [ -d $(TWINS) ]; then $(BIN)/lmsbuild test $(TAG) --dry --offline --no-stock cases; \
	else echo "left out: the dry twins of the cases, because there is no wheel of $(TAG) yet; make test-dry runs them"; fi

# Two at a time: each of them leaves processors idle when it is alone.
BESIDE := @$(MAKE) --no-print-directory --jobs=2 --output-sync=line

test: $(STAMP)
	$(BESIDE) wheels style
	$(BESIDE) test-suites test-tool test-containers series

wheels: $(STAMP)
	$(BIN)/lmsbuild wheel $(TAG)
	$(BIN)/lmsbuild wheel $(TF_TAG)

# What uses the container engine takes turns there, so one process does it, beside the others.
TESTS := $(BIN)/python -m pytest tests/lmsbuild tests/engine tests/plugin tests/tflms

test-tool: $(DEVELOP)
	$(TESTS) -n $(WORKERS) -m 'not slow and not container'

test-containers: $(DEVELOP)
	$(TESTS) -m 'not slow and container'

test-suites: $(STAMP)
	$(BIN)/lmsbuild test $(TAG)
	$(MAKE) --no-print-directory test-dry
	$(BIN)/lmsbuild test $(TF_TAG)

# What of these suites is not about values. Once `make test` has run it needs no network.
DRY_SUITES := allocator capacity cases statistics training

test-dry: $(STAMP)
	$(BIN)/lmsbuild test $(TAG) --dry $(DRY_SUITES)

# The wheels that are built for a GPU, on the dry one: environments of 20 GB.
test-front: $(STAMP)
	$(BIN)/lmsbuild test $(TF_TAG) --cuda 11.8 dry
	$(BIN)/lmsbuild test tensorflow:2.21.0 --plugin --cuda 12.5 --tier full front dry
	$(BIN)/python -m pytest tests/simcuda/test_old_tensorflow.py

test-full: lint
	$(TESTS) -n $(WORKERS)
	$(BIN)/lmsbuild test $(TAG) --tier full --shard $(SHARD) $(RECORD)
	$(BIN)/lmsbuild test $(TF_TAG) --tier full --shard $(SHARD) $(RECORD)
	for release in $(PLUGIN); do $(BIN)/lmsbuild test $$release --plugin --shard $(SHARD) $(RECORD) || exit 1; done
	for release in $(PLUGIN_FULL); do $(BIN)/lmsbuild test $$release --plugin --tier full --shard $(SHARD) $(RECORD) || exit 1; done

# The releases that the plug-ins are tested on, and those whose slow tests are run as well: what
# differs between releases shows in the fast ones.
PLUGIN_NEWEST := 2.15.0
PLUGIN := 2.6.0 2.7.1 2.8.0 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 $(PLUGIN_NEWEST) \
	$(addprefix tensorflow:,2.14.1 2.16.2 2.18.1 2.20.0 2.21.0)
PLUGIN_FULL := $(PLUGIN_NEWEST) tensorflow:2.21.0

# The core's own tests are under them always; these are the adaptors.
test-sanitized: $(STAMP)
	$(BIN)/lmsbuild test $(TAG) sanitized
	$(BIN)/lmsbuild test $(TAG) --plugin sanitized

test-negative: $(DEVELOP)
	$(BIN)/python tests/engine/negative.py $(ONLY) $(RECORD)
	$(BIN)/lmsbuild test $(TAG) negative --shard $(SHARD) $(ONLY) $(RECORD)
	$(BIN)/lmsbuild test $(PLUGIN_NEWEST) --plugin negative --shard $(SHARD) $(ONLY) $(RECORD)
	$(BIN)/lmsbuild test $(TF_TAG) negative --shard $(SHARD) $(ONLY) $(RECORD)

# Their sources are in no package: a clone must have the commits. A clone is of one framework, so what
# it has not is named and left out.
OLD := tensorflow:v2.2.0 tensorflow:v2.1.0 pytorch:v1.5.0 pytorch:v1.4.0 pytorch:v1.3.1 pytorch:v1.3.0 pytorch:v1.2.0 pytorch:v1.1.0
# On which the suites do not run: the device has no kernels for them, and a test of its own.
OLD_APPLIED := pytorch:v1.5.0 pytorch:v1.4.0 pytorch:v1.3.1 pytorch:v1.3.0 pytorch:v1.2.0 pytorch:v1.1.0

test-old: $(STAMP)
	@test -d "$$LMSBUILD_MIRROR" || { echo "error: LMSBUILD_MIRROR names no folder; set it to a clone that has the commit of one of $(OLD)"; exit 1; }
	@tried=; for tag in $(OLD); do \
	commit=$$(sed -n 's/^commit = "\(.*\)"/\1/p' "patches/$$(echo $$tag | tr : /)/tag.toml"); \
	git -C "$$LMSBUILD_MIRROR" cat-file -e "$$commit^{commit}" 2>/dev/null || { echo "left out: $$tag, whose commit $$commit is not in the clone"; continue; }; \
	tried=1; $(BIN)/lmsbuild apply $$tag && $(BIN)/lmsbuild verify $$tag && $(BIN)/lmsbuild lint $$tag || exit 1; \
	case " $(OLD_APPLIED) " in *" $$tag "*) $(BIN)/lmsbuild wheel $$tag;; *) $(BIN)/lmsbuild test $$tag;; esac || exit 1; \
	done; test -n "$$tried" || { echo "error: $$LMSBUILD_MIRROR has none of these commits; set LMSBUILD_MIRROR to a clone that has one"; exit 1; }
	$(BIN)/python -m pytest tests/simcuda/test_old_torch.py

bench: $(STAMP)
	$(BIN)/lmsbuild bench $(TAG)
	@$(MAKE) --no-print-directory bench-tool

bench-core: $(DEVELOP)
	$(BIN)/python tests/engine/bench.py

bench-ops: run
	$(BIN)/python tests/regression/bench_ops.py $(TAG)

bench-tool: $(STAMP)
	$(BIN)/python tests/lmsbuild/bench.py $(TAG)

bench-survey: $(STAMP)
	$(BIN)/python tests/lmsbuild/bench_survey.py $(TAG)

# No GPU, so every time is modelled; resumes where it stopped.
DRY_PROFILES := v100-32gb-pcie3 v100-32gb-nvlink2 h200-141gb-pcie5
DRY_RESULTS := --minutes 60 --results docs/benchmarks/dry/results.jsonl

# The plug-in and IBM's choice on the first alone, to end within 35 minutes.
# The bounds need scipy.
bench-dry: $(DEVELOP)
	$(BIN)/lmsbuild bench $(TAG) --dry --compared --profile $(firstword $(DRY_PROFILES)) $(DRY_RESULTS) -- --parts factors
	for profile in $(wordlist 2,9,$(DRY_PROFILES)); do $(BIN)/lmsbuild bench $(TAG) --dry --profile $$profile $(DRY_RESULTS) -- --parts factors || exit 1; done
	$(BIN)/lmsbuild bench $(TAG) --dry $(DRY_RESULTS) -- --parts largest

# What the simulated device trains in minutes; resumes where it stopped.
SWEEP := --device sim --minutes 60
SWEEP_PLAN := --capped-only --scale 64 --models gpt2 --growth 4 --caps 24M --warmup 0 --steps 2 --methods plain,lms
SWEEP_DIR := work/sweep

sweep: $(STAMP)
	$(BIN)/lmsbuild bench $(TAG) $(SWEEP) --plugin --results $(SWEEP_DIR)/plugin.jsonl -- $(SWEEP_PLAN)
	$(BIN)/lmsbuild bench $(TAG) $(SWEEP) --results $(SWEEP_DIR)/patch.jsonl \
		--compare $(SWEEP_DIR)/plugin.jsonl --page docs/plugin.md -- $(SWEEP_PLAN)

patches: $(STAMP)
	$(BIN)/lmsbuild refresh $(TAG) --runtime
	$(BIN)/lmsbuild refresh $(TF_TAG) --runtime

clean:
	rm -rf $(VENV) work build
