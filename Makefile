# Two commands matter: `make demo` and `make test`. Each sets up all it needs in .venv/.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
SITE_STAMP := .venv/.site-installed
# One set of exact versions for every install, build requirements included.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
# One thread per process: the suite and the demo run several processes side by side.
export OMP_NUM_THREADS := 1
export PYTHONWARNINGS := ignore::DeprecationWarning:nflows

.PHONY: demo test soak faults load fuzz check format bench drift docs site man catalogues wheelhouse release proto clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/tributary demo --out demo-output

test: $(STAMP)
	@$(BIN)/python -m pytest -n 2 --dist worksteal

# Each of these three keeps what every step took, and goes on where it was stopped, as long as the code is the same:
# MINUTES=90 begins no further step after so many.
soak: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.whole soak --jobs 2 $(if $(MINUTES),--minutes $(MINUTES))

# Every fault of the list with its counts, in one line and in tests/benchmarks/results/faults.json; FULL=1: as often as is asked
# (hours; both go on where they were stopped, as long as the code is the same).
faults: $(STAMP)
	@$(BIN)/python -m tests.faults $(if $(FULL),--full)

# From an install to 500 hospitals: the first plot, waves that arrive at once and through a line that breaks, analysts who
# ask at once, a large bundle over a slow line, an agent that waits. About an hour, half of it the slow line's.
load: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.whole load $(if $(MINUTES),--minutes $(MINUTES))

# A million other inputs to every parser of strangers' bytes.
fuzz: $(STAMP)
	@$(BIN)/python -m tests.faults.fuzz --cases 16000

check: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m shared.proto.generate --check
	@$(BIN)/python -m pytest -n 2 --doctest-modules shared site_agent coordinator tributary_meta.py

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.whole bench $(if $(MINUTES),--minutes $(MINUTES))
	@$(BIN)/python -m tests.benchmarks.drift

# Which figures moved by more than a fifth since they were committed, after one or all were measured anew.
drift: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.drift

# What documents take from the code and from the figures.
docs: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.pages.write
	@$(BIN)/python -m tests.benchmarks.zoo_page
	@$(BIN)/python -m tests.benchmarks.estimands_page
	@$(BIN)/python -m tests.house.structure.test_architecture
	@$(BIN)/python -m tests.house.documents.test_privacy_page

$(SITE_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	@touch $@

# The documents as pages with a search and the code's reference; a dead link is an error.
site: $(SITE_STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html; search wants a server: $(BIN)/python -m http.server --directory build/site"

# Manual pages of the four programs, from their command trees.
man: $(STAMP)
	@$(BIN)/python deploy/man.py build/man

# New texts of the airlock page into each language's catalogue.
catalogues: $(STAMP)
	@PYTHONPATH=. $(BIN)/python deploy/catalogues.py

# A folder that installs without a network, with hashes and a bill of materials; a release is one from its tag, signed.
EXTRAS ?= site,coordinator,client
wheelhouse: $(STAMP)
	@rm -rf build/wheelhouse
	@$(BIN)/python deploy/release.py build/wheelhouse --extras $(EXTRAS)

release: $(STAMP)
	@rm -rf build/release
	@$(BIN)/python deploy/release.py build/release --extras $(EXTRAS) --tag $(if $(KEY),--key $(KEY))

proto: $(STAMP)
	@$(BIN)/python -m shared.proto.generate

clean:
	rm -rf .venv demo-output build
