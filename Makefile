# make demo: set up, forget a client, show that it worked.   make test: set up, run the tests.
# Both reuse .venv once it is there. No network but PyPI is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export FLWR_TELEMETRY_ENABLED = 0

.PHONY: demo test lint clean

demo: $(VENV)/.installed
	$(BIN)/ease-flower demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# torch and torchvision have to fit each other; these do, and torch stays free for those who
# install the package themselves.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.14.1 torchvision==0.29.1
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mini,dev]'
	touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info
