# make lab | test | notebooks | bench | doctor | clean.  Options for the program behind: make lab ARGS="--no-browser"
PYTHON ?= python3
ARGS ?=
VENV := $(CURDIR)/.venv
# Everything runs as if .venv were activated.
IN_VENV := PATH="$(VENV)/bin:$$PATH" VIRTUAL_ENV="$(VENV)"
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
FIND_PYTHON := command -v "$(PYTHON)" >/dev/null || { echo "setup: $(PYTHON) was not found: install Python 3.11 or newer" \
  "(Debian, Ubuntu: sudo apt-get install python3-venv; macOS: brew install python@3.12), then the same make command again." \
  >&2; exit 1; }

.PHONY: lab test notebooks bench doctor clean setup

lab: setup  ## open the course in JupyterLab
	@$(IN_VENV) JUPYTER_CONFIG_DIR="$(CURDIR)/.jupyter" JUPYTER_PREFER_ENV_PATH=1 \
	  jupyter lab --ServerApp.root_dir="$(CURDIR)" $(AS_ROOT) $(ARGS)

test: setup  ## run every test
	@$(IN_VENV) python -m pytest $(ARGS)

notebooks: setup  ## build notebooks/ and solutions/ from the lesson sources
	@$(IN_VENV) python -m labs.lessons build $(ARGS)

bench: setup  ## print the table of start-up times, parity and bytes
	@$(IN_VENV) python -m labs.bench $(ARGS)

doctor:  ## examine this machine; works before the set-up too
	@if [ -x "$(VENV)/bin/python" ]; then $(IN_VENV) python -m labs.doctor $(ARGS); \
	  else $(FIND_PYTHON); "$(PYTHON)" "$(CURDIR)/bootstrap.py" doctor $(ARGS); fi

clean:  ## remove what make made: the virtual environment and the caches; a learner's notebooks and progress stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis .jupyter/lab .jupyter/serverconfig .jupyter/migrated
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup:
	@$(FIND_PYTHON); "$(PYTHON)" "$(CURDIR)/bootstrap.py"
