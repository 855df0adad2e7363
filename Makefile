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

soak: $(STAMP)
	@TRIBUTARY_SOAK=1 $(BIN)/python -m pytest -m "soak or sampled"
	@$(BIN)/python -m tests.faults.fuzz --cases 16000
	@$(BIN)/python -m tests.benchmarks.front
	@$(BIN)/python -m tests.benchmarks.coverage
	@$(BIN)/python -m tests.benchmarks.interval_coverage
	@$(BIN)/python -m tests.benchmarks.honest 100
	@$(BIN)/python -m tests.benchmarks.honest 30 --epsilon 1 --bootstrap 30
	@$(BIN)/python -m tests.benchmarks.honest 100 --epsilon 1 --world misfit
	@$(BIN)/python -m tests.benchmarks.secure_sum
	@$(BIN)/python -m tests.benchmarks.secure_sum --world misfit
	@$(BIN)/python -m tests.benchmarks.secure_sum 20 14001 --no-rows --name secure_sum_stated_fits
	@$(BIN)/python -m tests.benchmarks.secure_sum 20 14001 --no-rows --world misfit --name secure_sum_stated_misfit
	@$(BIN)/python -m tests.benchmarks.secure_sum 14 16001 --epsilon 0.25 --no-rows --name secure_sum_quarter
	@$(BIN)/python -m tests.benchmarks.secure_sum 13 16001 --epsilon 0.25 --no-rows --world misfit --name secure_sum_quarter_misfit
	@$(BIN)/python -m tests.benchmarks.secure_sum 30 15001 --epsilon 1 --tau 0.08 --no-rows --name secure_sum_apart
	@$(BIN)/python -m tests.benchmarks.secure_sum_attack
	@$(BIN)/python -m tests.benchmarks.secure_sum_vector
	@$(BIN)/python -m tests.benchmarks.secure_sum_vector --world misfit
	@$(BIN)/python -m tests.benchmarks.secure_sum_vector --covariates 10
	@$(BIN)/python -m tests.benchmarks.honest_outcomes
	@$(BIN)/python -m tests.benchmarks.honest_comparison 20

# Every fault of the list with its counts, in one line and in tests/benchmarks/results/faults.json; FULL=1: as often as is asked
# (hours; both go on where they were stopped, as long as the code is the same).
faults: $(STAMP)
	@$(BIN)/python -m tests.faults $(if $(FULL),--full)

# From an install to 500 hospitals: the first plot, waves that arrive at once and through a line that breaks, analysts who
# ask at once, a large bundle over a slow line, an agent that waits. About an hour, half of it the slow line's.
load: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.newcomer
	@$(BIN)/python -m tests.benchmarks.load
	@$(BIN)/python -m tests.benchmarks.load 200 --waves 12 --cut .05 --name load_waves
	@$(BIN)/python -m tests.benchmarks.analysis_load
	@$(BIN)/python -m tests.benchmarks.analysis_load --sites 48 --analysts 25 --each 6 --name analysis_load_48
	@$(BIN)/python -m tests.benchmarks.analysis_load --sites 121 --each 6 --name analysis_load_121_at_once
	@$(BIN)/python -m tests.benchmarks.analysis_load --sites 121 --each 6 --pause 10 --name analysis_load_121
	@$(BIN)/python -m tests.benchmarks.analysis_load --sites 500 --each 4 --pause 10 --name analysis_load_500
	@$(BIN)/python -m tests.benchmarks.many_releases 200 12 many_releases_2400
	@$(BIN)/python -m tests.benchmarks.idle_agent
	@$(BIN)/python -m tests.benchmarks.slow_line

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
	@for name in lni_311 lni_312 lni_cohorts lni_ablation lni_auc cohorts_gap noise_speed flow_speed ghost_clipping postures federated startup demo_time \
	  upload_memory large_tables serving_memory log_proofs ledger_speed pooling_speed forest_speed estimand_speed model_speed model_coverage survival_coverage described_coverage everyday_coverage curve_coverage \
	  rare_shares band_coverage question_sites sandbox tables_quality tables_coverage tables_adaptation slicing_quality slicing_coverage \
	  slicing_table1 transport transport_one transport_grid discrepancy extremes equal_rows lni_transfer lni_search network_counts estimates scale; do \
	  echo "$$name"; $(BIN)/python -m tests.benchmarks.$$name || exit 1; done
	@$(BIN)/python -m tests.benchmarks.unlike_person
	@$(BIN)/python -m tests.benchmarks.lni_312 --oracles 500
	@$(BIN)/python -m tests.benchmarks.cohorts_gap --carry
	@$(BIN)/python -m tests.benchmarks.cohorts_gap --last
	@$(BIN)/python -m tests.benchmarks.cohorts_gap 1 100 --events
	@$(BIN)/python -m tests.benchmarks.zoo_page --measure
	@$(BIN)/python -m tests.benchmarks.drift

# Which figures moved by more than a fifth since they were committed, after one or all were measured anew.
drift: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.drift

# What documents take from the code and from the figures.
docs: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.pages.write
	@$(BIN)/python -m tests.benchmarks.zoo_page
	@$(BIN)/python -m tests.benchmarks.estimands_page
	@$(BIN)/python -m tests.test_architecture
	@$(BIN)/python -m tests.test_privacy_page

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
