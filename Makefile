# Every target sets up what it needs in .venv by itself; nothing has to be activated.
# make run     the shell, on a small model of its own; in a pipe the demonstration, many turns past
#              the window of that model
# make demo    the demonstration, in a terminal too
# make test    all tests that need nothing but Python
# make test-services  those that need Debian's chromium, haproxy and nginx
# make check   format, lint, types, layers
# make fix     format, and mend what lint can mend
# make docs    write anew what docs/ takes from the commands
# make pictures  draw the pictures in docs/ anew: the shell's, and the page's where chromium is there
# make proof   what is promised about real servers, on a real one, with figures (half an hour)
# make bench   brim and its peers on the same work (see benchmarks/README.md)
# make clean   remove .venv and caches

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
VENV := .venv
PY := $(VENV)/bin/python
# One more than there are processors: much of the time a test waits for a server.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)))
UV := $(shell command -v uv 2>/dev/null || echo $(PY) -m uv)

.PHONY: run demo test test-services check fix docs pictures proof bench clean
.DELETE_ON_ERROR:

run: $(VENV)/.run
	@if [ -t 0 ] && [ -t 1 ]; then $(PY) -m brim.cli local && exec $(PY) -m brim.cli -m local; \
	else exec $(PY) -m brim.demo; fi

demo: $(VENV)/.run
	@$(PY) -m brim.demo

test: $(VENV)/.test
	@$(PY) -m pytest -q -n $(WORKERS)

test-services: $(VENV)/.test
	@$(PY) -m pytest -q -n auto --dist loadfile tests/services

check: $(VENV)/.lint
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-cache

fix: $(VENV)/.lint
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

docs: $(VENV)/.lint
	@PYTHONPATH=. $(PY) scripts/write_cli_docs.py

pictures: $(VENV)/.test
	@PYTHONPATH=. $(PY) scripts/write_pictures.py
	@if command -v chromium >/dev/null 2>&1; then PYTHONPATH=. $(PY) scripts/write_page_pictures.py; \
	else echo "(the page's pictures stay as they are: chromium is not installed;" \
		"on Debian: apt-get install chromium fonts-inter)"; fi

proof: $(VENV)/.test
	@$(PY) -m proof
	@HYPOTHESIS_PROFILE=thorough $(PY) -m pytest -q -n auto tests/test_overflow.py tests/wire/test_templates.py

bench: $(VENV)/.test
	@$(PY) -m benchmarks

clean:
	rm -rf $(VENV) .venv-peers* .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One stamp per set of extras: made anew when pyproject.toml changes, otherwise nothing to do.
$(VENV)/.run: EXTRAS := demo,gateway,local,shell
$(VENV)/.run: LEAST := demo,gateway,shell
$(VENV)/.test: EXTRAS := test
$(VENV)/.lint: EXTRAS := lint

# With uv where it works, else with pip.
install = { $(UV) pip install -q --python $(PY) --compile-bytecode -e '.[$(1)]' 2>$(VENV)/uv.log || { \
	echo "(without uv: $(VENV)/uv.log says why; with pip it takes a little longer)"; \
	{ $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null; } && \
	$(PY) -m pip install -q --disable-pip-version-check -e '.[$(1)]'; }; }

$(VENV)/.run $(VENV)/.test $(VENV)/.lint: pyproject.toml | $(PY)
	@echo "setting up $(VENV) for '$(EXTRAS)' ..."
	@$(call install,$(EXTRAS)) || { [ -n "$(LEAST)" ] && \
		echo "(that failed; going on with '$(LEAST)' alone)" && $(call install,$(LEAST)); }
	@touch $@

$(PY):
	@if [ -z "$(PYTHON)" ]; then \
		echo "brim needs Python 3.11 or newer; none was found. Install one, or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@if command -v uv >/dev/null 2>&1; then uv venv -q --python $(PYTHON) $(VENV); else \
		$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
			echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
		$(PY) -m pip install -q --disable-pip-version-check uv >/dev/null 2>&1 || true; \
	fi
