# Every target sets up .venv by itself; nothing has to be activated.
#
# make run            start the shell with the embedded model; without a terminal, run the demo
# make demo           show a conversation that continues long after the context window is full
# make test           run every test that needs only Python
# make test-fast      run the tests that start no process, socket or terminal
# make test-services  run the tests that need Debian's bubblewrap, chromium, fish, haproxy, nginx and zsh
# make test-integrations  run the tests with Ray, Spark, datasets, Polars, Daft and S3, each in its own .venv-NAME
# make test-frameworks  run those with LangChain and the other agent frameworks (a part of test-integrations, 5 GB;
#                     FRAMEWORKS="langchain crewai" for some)
# make test-all       run all of them with many more generated examples, and print branch coverage
# make check          check formatting, lint, types, layers and style
# make fix            format, and apply the automatic fixes of the linter
# make docs           regenerate the pages in docs/ that come from the code
# make pictures       redraw the pictures and the terminal cast in docs/ (those of the dashboard only if chromium is installed)
# make proof          check brim's promises against a real model server (half an hour)
# make bench          compare brim with other libraries (see benchmarks/README.md)
# make clean          remove .venv and all caches

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
VENV := .venv
PY := $(VENV)/bin/python
# One more worker than processors, because tests often wait for a server.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)))
# Each worker has its part of the files, and with it their servers; idle workers take from others.
PARALLEL := -n $(WORKERS) --dist worksteal
UV := $(shell command -v uv 2>/dev/null || echo $(PY) -m uv)

.PHONY: run demo test test-fast test-services test-integrations test-frameworks test-all check fix docs pictures proof bench clean
.DELETE_ON_ERROR:

run: $(VENV)/.run
	@if [ -t 0 ] && [ -t 1 ]; then $(PY) -m brim.cli local && exec $(PY) -m brim.cli -m local; \
	else exec $(PY) examples/demo.py; fi

demo: $(VENV)/.run
	@$(PY) examples/demo.py

test: $(VENV)/.test
	@$(PY) -m pytest -q $(PARALLEL)

test-fast: $(VENV)/.test
	@$(PY) -m pytest -q -n auto --dist worksteal -m "not (gateway or llama or process or pty or services or stores)"

test-services: $(VENV)/.test
	@$(PY) -m pytest -q -n auto --dist loadfile tests/services
	@TEST_SHELLS=/bin/zsh $(PY) -m pytest -q -n auto tests/shell/test_terminal.py -k zsh
	@$(PY) -m pytest -q -n auto tests/shell/test_sandbox.py -k bubblewrap

# Each engine has its own environment, because they need different versions of the same packages.
ENGINES := ray spark datasets polars daft s3
test-integrations: $(ENGINES:%=test-%) test-frameworks

test-%: .venv-%/.engine
	@PYTHONPATH=. .venv-$*/bin/python -m pytest -q -o addopts= -o filterwarnings= -o timeout=600 \
		--confcutdir tests/engines -p no:cacheprovider tests/engines/test_$*.py

.PRECIOUS: .venv-%/.engine
.venv-%/.engine: EXTRA = $*
.venv-s3/.engine: EXTRA = arrow
.venv-s3/.engine: SERVER = s3fs 'moto[server]'
.venv-%/.engine: pyproject.toml | $(PY)
	@echo "Installing brim[$(EXTRA)] into .venv-$*"
	@[ -d .venv-$* ] || $(PY) -m venv .venv-$*
	@$(UV) pip install -q --python .venv-$*/bin/python -e '.[$(EXTRA),models]' $(SERVER) pytest pytest-timeout
	@touch $@

FRAMEWORKS ?= langchain openai_agents pydantic_ai llama_index haystack autogen crewai smolagents litellm dspy

test-frameworks: $(FRAMEWORKS:%=$(VENV)-frameworks/%/.installed)
	@for name in $(FRAMEWORKS); do echo "$$name:"; \
		$(VENV)-frameworks/$$name/bin/python -m pytest -q -c tests/integrations/frameworks/pytest.ini --rootdir . \
			tests/integrations/frameworks/test_$$name.py || exit 1; done

# An environment with brim, a framework in the range of its extra, and what its tests need.
$(VENV)-frameworks/%/.installed: pyproject.toml | $(PY)
	@name=$$(echo $* | tr _ -); echo "Installing $$name into $(@D)"; \
	$(PY) -m venv $(@D) && { $(UV) pip install -q --python $(@D)/bin/python -e ".[$$name]" --group $$name \
		|| $(@D)/bin/python -m pip install -q 'pip>=25.1' -e ".[$$name]" --group $$name; }
	@touch $@

test-all: export HYPOTHESIS_PROFILE := thorough
test-all: $(VENV)/.test
	@$(PY) -m pytest -q $(PARALLEL) --timeout 1800 --cov --cov-report=
	@$(PY) -m pytest -q -n auto --dist loadfile --timeout 1800 --cov --cov-append tests/services
	@$(MAKE) test-integrations

check: $(VENV)/.lint
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-cache
	@$(PY) scripts/check_imports.py
	@$(PY) scripts/check_style.py

fix: $(VENV)/.lint
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

docs: $(VENV)/.lint
	@PYTHONPATH=. $(PY) scripts/write_cli_docs.py
	@PYTHONPATH=. $(PY) scripts/write_api_docs.py

pictures: $(VENV)/.test
	@PYTHONPATH=. $(PY) scripts/write_pictures.py
	@PYTHONPATH=. $(PY) scripts/write_cast.py
	@if command -v chromium >/dev/null 2>&1; then PYTHONPATH=. $(PY) scripts/write_page_pictures.py; \
	else echo "The pictures of the dashboard were not redrawn: chromium is not installed." \
		"On Debian: apt-get install chromium fonts-inter"; fi

proof: $(VENV)/.test
	@$(PY) -m benchmarks.promises
	@HYPOTHESIS_PROFILE=thorough $(PY) -m pytest -q -n auto --timeout 1800 tests/wire/test_overflow.py tests/wire/test_templates.py

bench: $(VENV)/.test
	@$(PY) -m benchmarks

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One stamp for each set of packages, renewed when pyproject.toml changes.
$(VENV)/.run: PACKAGES := -e '.[gateway,local,shell]'
$(VENV)/.run: FALLBACK := -e '.[gateway,shell]'
$(VENV)/.test: PACKAGES := -e '.[all]' --group test
$(VENV)/.lint: PACKAGES := -e '.[all]' --group lint

# Uses uv if it works, otherwise pip (25.1 or newer, which knows dependency groups).
install = { $(UV) pip install -q --python $(PY) --compile-bytecode $(1) 2>$(VENV)/uv.log || { \
	echo "uv failed (see $(VENV)/uv.log); using pip, which takes longer"; \
	{ $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null; } && \
	$(PY) -m pip install -q --disable-pip-version-check 'pip>=25.1' && \
	$(PY) -m pip install -q --disable-pip-version-check $(1); }; }

$(VENV)/.run $(VENV)/.test $(VENV)/.lint: pyproject.toml | $(PY)
	@echo "Installing into $(VENV): $(PACKAGES)"
	@$(call install,$(PACKAGES)) || { [ -n "$(FALLBACK)" ] && \
		echo "That failed; installing without the embedded model." && $(call install,$(FALLBACK)); }
	@touch $@

$(PY):
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or newer was not found. Install it, or set its path: make PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@if command -v uv >/dev/null 2>&1; then uv venv -q --python $(PYTHON) $(VENV); else \
		$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
			echo "$(PYTHON) cannot create a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }; \
		$(PY) -m pip install -q --disable-pip-version-check uv >/dev/null 2>&1 || true; \
	fi
