"""Break the product in small ways and see the tests turn red: ``python -m tests.mutations [WORD | --new]``.

Each mutation is an edit of a line or two in a *copy* of the tree, in a temporary folder; then the tests named beside it
run there, and at least one has to fail. A mutation that survives is a hole in the tests, to be closed by a test. Tests
that merely cannot be collected kill nothing: only pytest's exit code for failed tests counts.

Before the first mutation all the named tests run on the untouched copy, and must pass. The table of what became of
each is ``tests/benchmarks/results/mutations.json``: a run of all writes it, and ``--new``, of those that it does
not hold as noticed, adds to it. WORD runs those mutations whose name contains it, and writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import record
from tests.stage.house.sources import located
from tests.stage.processes.owned_folder import owned_folder

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("shared", "site_agent", "coordinator", "tests", "deploy", "docs", "pyproject.toml", "README.md")
FAILED, PASSED = 1, 0
SECONDS = 1800


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which stands exactly once in the file, by `new`."""

    path: str
    old: str
    new: str

    def applied(self, root: Path) -> str:
        """The file's text with the edit made. Raises: AssertionError, unless `old` stands there exactly once."""
        text = (root / self.path).read_text()
        count = text.count(self.old)
        assert count == 1, f"{self.path}: {count} places for {self.old!r}"
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutation:
    """A small wrong idea, the edits that carry it out, and the tests that have to notice."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def mutation(name: str, *edits: tuple[str, str, str], tests: Sequence[str]) -> Mutation:
    return Mutation(name, tuple(Edit(*edit) for edit in edits), tuple(map(located, tests)))


LATENT = "shared/mechanisms/latent_noise/noise.py"
MOMENTS = "shared/mechanisms/moments/noise.py"
MOMENTS_SPEC = "shared/mechanisms/moments/spec.py"
MOMENTS_DRAW = "shared/mechanisms/moments/draw.py"
RANDOM = "shared/base/randomness.py"
SUM_INFLUENCES = "shared/mechanisms/secure_sum/influences.py"
SUM_PLAN = "shared/mechanisms/secure_sum/plan.py"
SUM_SITE = "shared/mechanisms/secure_sum/site.py"
SUM_TERMS = "shared/mechanisms/secure_sum/terms.py"
SUM_VECTORS = "shared/mechanisms/secure_sum/vectors.py"
SUM_VARIANTS = "shared/mechanisms/secure_sum/variants.py"
CONSENT = "site_agent/training/secure_sum/consent.py"
TERMINAL = "shared/terminal/__init__.py"
STATUS = "site_agent/cli/joining.py"
SUM_LOOKS = "shared/mechanisms/secure_sum/sent_look.py"
PRIVACY = "shared/privacy/accountant.py"
RENYI = "shared/privacy/renyi.py"
SLICING_LOSS = "shared/privacy/slicing_loss.py"
CALIBRATION = "shared/privacy/calibration.py"
RELEASE = "shared/releases/receipt.py"
PRESCRIBED = "shared/mechanisms/latent_noise/plan.py"
DENSITY = "shared/mechanisms/densities/noise.py"
SCALING = "shared/mechanisms/densities/scaling.py"
LOCAL = "shared/mechanisms/densities/local.py"
QUANTILES = "shared/mechanisms/densities/quantiles.py"
GROUPS = "shared/mechanisms/densities/groups.py"
DENSITIES_PLAN = "shared/mechanisms/densities/plan.py"
GRAND = "shared/mechanisms/grand/noise.py"
LABELS = "shared/mechanisms/grand/labels.py"
LATENTS = "site_agent/models/latent_space.py"
LATENT_FIT = "site_agent/models/latent_fit.py"
NETWORKS = "shared/mechanisms/grand/counts.py"
TABLES = "shared/mechanisms/tables/noise.py"
TABLES_TOGETHER = "shared/mechanisms/tables/together.py"
SLICING = "shared/mechanisms/slicing/noise.py"
SLICING_PLAN = "shared/mechanisms/slicing/plan.py"
DRAWING = "site_agent/release/drawing.py"
CAPPED = "shared/mechanisms/network_counts/capped.py"
PACKING = "shared/mechanisms/network_counts/packing.py"
COUNTS_PLAN = "shared/mechanisms/network_counts/plan.py"
NETWORK_SITE = "site_agent/release/networks.py"
NETWORK_PLAN = "shared/mechanisms/grand/plan.py"
CHARGE = "site_agent/ledger/charge.py"
LEDGER_DRAWING = "site_agent/ledger/drawing.py"
LEDGER_PERSONS = "site_agent/ledger/persons.py"
HOLDS = "site_agent/ledger/holds.py"
COMPOSED = "shared/privacy/composition.py"
PIPELINE = "site_agent/release/pipeline/making.py"
POPULATION = "site_agent/release/pipeline/population.py"
FITTING = "site_agent/release/fitting.py"
SGD = "site_agent/models/private_flow.py"
FEDERATED = "shared/plans/federated.py"
AT_SITES = "site_agent/training/federation.py"
AT_HUB = "coordinator/training/strategies.py"

FIGURE = "test_shipped_noise.py::test_every_released_figure_carries_the_very_value_that_the_sampler_handed_out"
BETWEEN_SITES = "test_tables_together.py::test_what_lies_between_sites_is_not_read_as_an_association_within_them"
ASKED = "test_shipped_noise.py::test_the_noise_that_is_asked_for_is_what_the_event_is_charged_by"
MOVED = (
    "test_shipped_noise.py::"
    "test_exchanging_a_record_moves_the_figures_by_no_more_than_is_charged_and_the_worst_one_by_as_much"
)
MOVED_MOMENTS = (
    "test_shipped_noise.py::"
    "test_exchanging_a_record_moves_moments_by_no_more_than_is_charged_and_the_worst_one_by_nearly_as_much"
)
MOVED_LINE = "test_shipped_noise.py::test_exchanging_a_record_moves_its_line_by_no_more_than_is_charged"
MOVED_ROW = "test_shipped_noise.py::test_exchanging_a_record_moves_its_row_by_the_diameter_and_no_other_at_all"
MOVED_STEP = (
    "test_shipped_noise.py::"
    "test_exchanging_a_record_moves_a_training_step_by_less_than_twice_the_planned_clip_and_by_nearly_that"
)
LENS = "test_shipped_noise.py::test_moments_look_at_records_through_nothing_but_what_the_released_figures_say"
ROW = "test_shipped_noise.py::test_every_coordinate_of_every_row_carries_the_very_value_that_the_sampler_handed_out"
STEP = (
    "test_shipped_noise.py::test_every_weight_of_every_training_step_carries_the_very_value_that_the_sampler_handed_out"
)
SAMPLE = "test_shipped_noise.py::test_each_training_step_samples_everybody_anew_at_the_planned_rate"
RANK = (
    "test_shipped_noise.py::test_every_rank_of_every_released_person_carries_the_very_value_that_the_sampler_handed_out"
)
ORDER = "test_shipped_noise.py::test_released_rows_stand_in_no_order_of_their_persons"
QUANTILE_ODDS = (
    "test_choices.py::test_no_record_changes_the_odds_of_any_quantiles_by_more_than_the_price_and_some_by_nearly_that"
)
REPORT_ODDS = (
    "test_choices.py::test_no_record_changes_the_odds_of_any_reports_by_more_than_the_price_and_the_worst_by_just_that"
)
LABEL_ODDS = "test_choices.py::test_a_label_is_told_with_exactly_the_odds_that_are_stated_and_charged"
IN_SAMPLE = "test_choices.py::test_a_person_enters_a_sample_on_exactly_as_many_words_of_the_keystream_as_the_rate_says"

MUTATIONS: tuple[Mutation, ...] = (
    # -- the noise ------------------------------------------------------------------------------------------------
    mutation(
        "half the noise, in the mechanism",
        (LATENT, "gaussian_steps(self._sigma, steps.shape", "gaussian_steps(self._sigma / 2, steps.shape"),
        tests=[
            "test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims",
            "test_every_epsilon.py::test_the_printed_epsilon_is_that_of_the_noise_in_the_released_rows",
        ],
    ),
    mutation(
        "half the noise, in the sampler",
        (RANDOM, "ratio = _ratio(sigma, grid)", "ratio = _ratio(sigma / 2, grid)"),
        tests=["test_two_worlds.py::test_latent_noise_keeps_its_claim"],
    ),
    mutation(
        "nine tenths of the noise",
        (LATENT, "gaussian_steps(self._sigma, steps.shape", "gaussian_steps(0.9 * self._sigma, steps.shape"),
        tests=["test_every_epsilon.py::test_the_printed_epsilon_is_that_of_the_noise_in_the_released_rows"],
    ),
    mutation(
        "1 - w for its square root, in the noise",
        (LATENT, "gaussian_steps(self._sigma, steps.shape", "gaussian_steps(1 - self.w, steps.shape"),
        tests=["test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims"],
    ),
    mutation(
        "w for its square root, in the event",
        (LATENT, "sensitivity=2 * self._reach)", "sensitivity=2 * self.radius * self.w)"),
        tests=["test_two_worlds.py::test_latent_noise_keeps_its_claim"],
    ),
    mutation(
        "the radius charged for the diameter",
        (LATENT, "sensitivity=2 * self._reach)", "sensitivity=self._reach)"),
        tests=["test_every_epsilon.py::test_the_printed_epsilon_is_that_of_the_noise_in_the_released_rows"],
    ),
    mutation(
        "clipping skipped",
        (LATENT, "length = np.minimum(norm, radius)", "length = norm"),
        (LATENT, "most = math.floor((Fraction(self._reach) / Fraction(grid)) ** 2)", "most = 2**80"),
        tests=["test_two_worlds.py::test_latent_noise_keeps_its_claim"],
    ),
    mutation(
        "a tenth of the noise, in the drawing of a network",
        (NETWORK_SITE, "noise = mechanism.noise(self._names, rng)", "noise = mechanism.noise(self._names, rng) / 10"),
        tests=[
            "test_network_release.py::test_every_coordinate_of_every_released_person_gets_the_noise_that_is_charged"
        ],
    ),
    mutation(
        "the noise of the dimension that was chosen, where the largest was charged",
        (
            NETWORK_PLAN,
            "epsilon=total * fewer / p, p=fewer, attributes=attributes, fixed=stated",
            "epsilon=total, p=fewer, attributes=attributes",
        ),
        tests=[
            "test_network_release.py::test_a_smaller_dimension_than_the_plan_s_largest_has_the_same_noise_and_pays_less"
        ],
    ),
    mutation(
        "attributes of a network for nothing",
        (NETWORK_PLAN, "attributes = Encoder(dictionary=self.coordinates_of(plan.dictionary)).d", "attributes = 0"),
        tests=["test_network_release.py::test_the_price_is_exactly_epsilon_and_p_stands_on_the_receipt"],
    ),
    mutation(
        "a model of everybody's ties",
        (
            NETWORK_SITE,
            "self._held = from_held[:, held]",
            "self._held = whole[rows + held][:, rows + held][: len(held), : len(held)]",
        ),
        tests=["test_network_release.py::test_ties_among_the_released_are_never_read"],
    ),
    mutation(
        "a later wave that fits everybody's ties to everybody",
        (NETWORK_SITE, "self._ties = whole[rows][:, held]", "self._ties = whole[rows][:, [*held[1:], rows[0]]]"),
        tests=["test_network_release.py::test_ties_among_the_new_and_between_new_and_old_are_never_read"],
    ),
    mutation(
        "a new key for the pairs of each wave",
        (NETWORK_SITE, "before.key, [str(k)", "rng.generator.bytes(32), [str(k)"),
        tests=["test_network_release.py::test_edges_between_two_persons_are_the_same_whichever_wave_asks"],
    ),
    mutation(
        "the numbers of a wave given to the next one as well",
        ("site_agent/release/embeddings.py", "first=first)", "first=0)"),
        tests=["test_network_release.py::test_edges_between_two_persons_are_the_same_whichever_wave_asks"],
    ),
    mutation(
        "a frame that outlives its deletion",
        ("site_agent/release/embeddings.py", "self.path.unlink(missing_ok=True)", "there = there[:0]"),
        tests=["test_network_release.py::test_a_frame_that_is_deleted_is_gone_and_no_wave_goes_on_from_it"],
    ),
    mutation(
        "a returned edge that is lost three times",
        (NETWORKS, "back @ got - 3 * both", "back @ got - 2 * both"),
        tests=[
            "test_networks.py::test_figures_of_arcs_and_their_jackknife_are_those_of_leaving_every_node_out",
        ],
    ),
    mutation(
        "a database's address in a refusal",
        (
            "site_agent/records/readers/databases.py",
            'problem = "something else"',
            "problem = given",
        ),
        tests=["test_databases.py::test_no_address_and_no_value_is_ever_told"],
    ),
    mutation(
        "half the noise, in the moments",
        (
            MOMENTS_DRAW,
            "lattice_gaussian_steps(sigma_of(spec, block), sums",
            "lattice_gaussian_steps(sigma_of(spec, block) / 2, sums",
        ),
        tests=[
            "test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims",
            "test_moments_study.py::test_a_site_releases_figures_and_no_row",
        ],
    ),
    mutation(
        "a moments release charged at a larger δ than the plan's",
        (
            "shared/mechanisms/moments/plan.py",
            "spec, factors = self.spec(plan.budget.delta), factors_of(",
            "spec, factors = self.spec(1e-3), factors_of(",
        ),
        tests=["test_moments_study.py::test_the_plan_s_epsilon_is_the_price_and_the_plan_survives_being_written_down"],
    ),
    mutation(
        "a record counted in one cell of a histogram, not in two",
        (MOMENTS_SPEC, "_up(math.sqrt(2 * spec.tables))", "_up(math.sqrt(spec.tables))"),
        tests=[
            "test_moments.py::test_no_two_records_are_further_apart_in_all_blocks_than_the_event_says_and_some_are_that_far"
        ],
    ),
    mutation(
        "the moments' diameter without the features that change sign",
        (MOMENTS, "h * (w2 + f), f * g2 + h * w2)\n\n\ndef _diameter", "h * w2, f * g2 + h * w2)\n\n\ndef _diameter"),
        tests=["test_moments.py::test_the_diameter_of_the_moments_is_that_of_all_pairs_of_corners"],
    ),
    mutation(
        "the products' diameter at half the pairs",
        (MOMENTS_SPEC, "math.sqrt(4 * (p * p // 4) + p", "math.sqrt(2 * (p * p // 4) + p"),
        tests=[
            "test_moments.py::test_no_two_records_are_further_apart_in_all_blocks_than_the_event_says_and_some_are_that_far"
        ],
    ),
    mutation(
        "moments: five percent more room than the blocks have together",
        (MOMENTS, "return found * (1 - 1e-12)", "return found * 1.05"),
        tests=[
            "test_moments.py::test_no_two_records_are_further_apart_in_all_blocks_than_the_event_says_and_some_are_that_far"
        ],
    ),
    mutation(
        "moments: room as if a column that differs in one block differed in no other",
        (
            MOMENTS,
            "left = 1 - fourth - first * (1 - still / (p + 1)) - products * (",
            "left = 1 - fourth - first - 0 * (",
        ),
        tests=["test_moments.py::test_whatever_the_weights_no_two_records_are_further_apart_than_the_room_says"],
    ),
    mutation(
        "moments: products that follow their covariates as they like",
        (
            MOMENTS,
            "return np.clip(wide, -(-along // most) - 216, along // most + 216)",
            "return 1024 * np.sign(x - 50)",
        ),
        tests=["test_moments.py::test_block_three_is_held_beside_block_two_whatever_the_lens"],
    ),
    mutation(
        "moments: a plan from before is read with today's noise",
        (
            MOMENTS_SPEC,
            'squares = SQUARE**2 if spec.sensitivity == "blocks" or p == 1 else 2.0**-19',
            "squares = 2.0**-19",
        ),
        tests=["test_moments.py::test_a_plan_from_before_has_the_noise_and_the_looks_that_it_had"],
    ),
    mutation(
        "a score that is not held in its box",
        (
            MOMENTS,
            "np.clip(np.rint(rows * most).astype(np.int64), -most, most)",
            "np.rint(2 * rows * most).astype(np.int64)",
        ),
        tests=["test_moments.py::test_in_a_plan_from_before_no_two_records_are_further_apart_in_any_block"],
    ),
    mutation(
        "influences that each have a box of their own",
        (
            "shared/mechanisms/moments/influence.py",
            'np.sqrt(np.einsum("d...,d...->...", influences, influences))',
            "np.abs(influences).max(axis=0)",
        ),
        tests=[
            "test_moments.py::test_a_score_moves_no_two_records_further_apart_than_the_event_says",
            "test_moments_influence.py::test_influences_are_drawn_in_as_one_vector_and_keep_their_direction",
        ],
    ),
    mutation(
        "influences in a ball as wide as a diameter",
        (MOMENTS, 'return STEPS // 2 if kind == "influence"', 'return STEPS if kind == "influence"'),
        tests=["test_moments.py::test_a_score_moves_no_two_records_further_apart_than_the_event_says"],
    ),
    mutation(
        "a site of few records taken for one whose histograms are known",
        (
            "shared/mechanisms/moments/cohort.py",
            "self.events < FEW_EVENTS or self.n < _DROWNED * sigma_of(self.design.spec, 0)",
            "self.events < FEW_EVENTS",
        ),
        tests=["test_cohort.py::test_few_records_beside_the_noise_are_bootstrapped"],
    ),
    mutation(
        "what every site may be off by alike, divided by the number of sites",
        (
            "coordinator/pooling/pool.py",
            "return in_common(result.estimates, result.weights) +",
            "return in_common(result.estimates, result.weights) / result.k +",
        ),
        tests=["test_pooling.py::test_what_every_site_may_be_off_by_alike_is_not_divided_by_the_number_of_sites"],
    ),
    mutation(
        "every site looked at from the mean of all",
        (
            "shared/mechanisms/moments/together.py",
            "return np.asarray(mean + between / (between + variances) * (effects - mean))",
            "return np.asarray(mean + 0 * effects)",
        ),
        tests=[
            "test_moments_study.py::test_hospitals_that_differ_are_each_told_their_own_effect_and_move_no_covariate_beside_it"
        ],
    ),
    mutation(
        "what all rows may be off by alike, left out of subgroups",
        ("coordinator/pooling/subgroups.py", "estimates=estimates, shared=alike)", "estimates=estimates, shared=0.0)"),
        tests=["test_pooling.py::test_what_all_rows_may_be_off_by_alike_is_in_each_subgroup_and_in_no_difference"],
    ),
    mutation(
        "equal rows: the least likely hit is never looked at",
        (
            "site_agent/release/equal_rows.py",
            "return self.found > self.allowed or self.far > 0",
            "return self.found > self.allowed",
        ),
        tests=["test_equal_rows.py::test_one_copy_of_somebody_out_of_reach_is_found_where_many_rows_are_hit_by_chance"],
    ),
    mutation(
        "moments of one covariate charged as if its square did not move",
        (MOMENTS_SPEC, 'spec.sensitivity == "blocks" or p == 1 else', 'spec.sensitivity == "blocks" else'),
        tests=[
            "test_moments.py::test_no_two_records_are_further_apart_in_all_blocks_than_the_event_says_and_some_are_that_far"
        ],
    ),
    mutation(
        "the signal left off the grid",
        (LATENT, "steps = np.trunc(signal / grid).astype(np.int64)", "steps = signal / grid"),
        tests=["test_noise_levels.py::test_what_comes_out_of_the_mechanism_lies_on_the_grid_whatever_went_in"],
    ),
    mutation(
        "rounding after the noise",
        (LATENT, "steps = np.trunc(signal / grid).astype(np.int64)", "steps = signal / grid"),
        (
            LATENT,
            "steps += rng.lattice_gaussian_steps(self._sigma, steps.shape, grid)",
            "steps = np.rint(steps + rng.generator.normal(size=steps.shape) * self._sigma / grid)",
        ),
        tests=[
            "test_noise_levels.py::test_noise_that_is_ten_percent_off_is_found_though_the_event_still_claims_the_same",
            "test_noise_levels.py::test_noise_is_drawn_only_where_level_one_looks",
        ],
    ),
    mutation(
        "the signal rounded to nearest, which lengthens it",
        (LATENT, "np.trunc(signal / grid)", "np.rint(signal / grid)"),
        tests=["test_latent_noise.py::test_rounding_is_towards_zero_and_loses_less_than_a_step"],
    ),
    mutation(
        "one noise for all rows",
        (
            LATENT,
            "gaussian_steps(self._sigma, steps.shape, grid)",
            "gaussian_steps(self._sigma, steps.shape[1:], grid)",
        ),
        tests=[
            "test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims",
            "test_noise_levels.py::test_no_noise_is_drawn_twice",
        ],
    ),
    # -- the randomness -------------------------------------------------------------------------------------------
    mutation(
        "a fixed seed for every source",
        (RANDOM, "return Noise(_key=None)", "return seeded_rng(7)"),
        tests=["test_randomness.py::test_two_secure_sources_never_agree"],
    ),
    mutation(
        "the same seed in every wave",
        (
            PIPELINE,
            "rng = secure_rng() if rng is None else rng",
            "rng = __import__('shared.base.randomness').randomness.seeded_rng(7) if rng is None else rng",
        ),
        tests=["test_every_epsilon.py::test_two_waves_are_two_draws"],
    ),
    mutation(
        "the keystream repeats",
        (
            RANDOM,
            "self._key, self._buffer, self._position = fresh[:32], fresh[32:], 0",
            "self._buffer, self._position = fresh[32:], 0",
        ),
        tests=["test_randomness.py::test_long_draws_do_not_repeat_across_refills"],
    ),
    mutation(
        "a forked process keeps the key",
        (RANDOM, "            if self._secure:\n", "            if False:\n"),
        tests=["test_randomness.py::test_a_forked_process_draws_other_noise"],
    ),
    mutation(
        "all substreams alike",
        (RANDOM, 'b"child %d" % number', 'b"child"'),
        tests=["test_randomness.py::test_substreams_are_independent_of_each_other_and_of_their_parent"],
    ),
    mutation(
        "the sampler in floating point",
        (
            RANDOM,
            "return self._in_blocks(shape, lambda count: self._gaussian_block(count, ratio))",
            "return np.rint(self.generator.normal(size=shape) * float(ratio)).astype(np.int64)",
        ),
        tests=["test_randomness.py::test_noise_never_comes_from_the_floating_point_generator"],
    ),
    mutation(
        "a grid that forgets the number of coordinates",
        (
            "shared/privacy/grids.py",
            "most = min(most, 0.01 * sensitivity / rounding_reach(1.0, coordinates, norm))",
            "most = min(most, 0.01 * sensitivity)",
        ),
        tests=["test_randomness.py::test_rounding_to_nearest_adds_at_most_one_percent_to_a_sliced_row"],
    ),
    # -- the accountant -------------------------------------------------------------------------------------------
    mutation(
        "add or remove for replace one",
        (
            PRIVACY,
            "neighboring_relation=pld.NeighborRel.REPLACE_ONE",
            "neighboring_relation=pld.NeighborRel.ADD_OR_REMOVE_ONE",
        ),
        tests=["test_privacy.py::test_subsampling_is_charged_under_replace_one_and_not_add_or_remove"],
    ),
    mutation(
        "one coordinate's ε for all of them",
        (PRIVACY, "event.coordinates * (event.sensitivity / event.scale)", "(event.sensitivity / event.scale)"),
        tests=["test_two_worlds.py::test_coordinates_that_move_together_are_charged_together"],
    ),
    mutation(
        "slicing charged at the lower edges",
        (SLICING_LOSS, "return edges * (event.distance", "return (edges - (high - low) / bins) * (event.distance"),
        tests=["test_privacy.py::test_slicing_is_an_upper_bound_on_its_integral_in_thirty_digits"],
    ),
    mutation(
        "slicing's tail given away",
        (SLICING_LOSS, "np.minimum(np.concatenate(parts) + tail, 1.0)", "np.minimum(np.concatenate(parts), 1.0)"),
        tests=["test_privacy.py::test_the_tail_beyond_the_last_bin_of_slicing_is_charged_in_full"],
    ),
    mutation(
        "Rényi curves rounded down",
        (RENYI, "np.ceil(curve[finite] * (1 + 1e-12)", "np.floor(curve[finite] * (1 + 1e-12)"),
        tests=["test_privacy.py::test_the_laplace_renyi_curve_is_the_divergence_by_quadrature"],
    ),
    mutation(
        "a weight solved for the radius instead of the diameter",
        (CALIBRATION, "mu * mu / (mu * mu + 4 * radius * radius)", "mu * mu / (mu * mu + radius * radius)"),
        tests=["test_privacy.py::test_a_weight_gives_back_the_epsilon_it_was_solved_from"],
    ),
    # -- the books ------------------------------------------------------------------------------------------------
    mutation(
        "δ handed out again to every release",
        (
            COMPOSED,
            "max((_epsilon(curve, pure, delta) for",
            "max((_epsilon(curve, pure, len(self.charges) * delta) for",
        ),
        tests=["test_every_epsilon.py::test_the_budget_statement_charges_what_the_receipts_print"],
    ),
    mutation(
        "the best-off person's total instead of the worst-off's",
        (COMPOSED, "return max((_epsilon(curve, pure, delta)", "return min((_epsilon(curve, pure, delta)"),
        tests=["test_every_epsilon.py::test_the_total_of_a_study_is_that_of_the_person_who_lost_most"],
    ),
    mutation(
        "a refund when a release is burnt",
        (
            CHARGE,
            "    own = book.of(study)\n",
            "    own = [h for h in book.of(study) if h.phase != 'burnt']\n",
        ),
        tests=[
            "test_ledger.py::test_a_burnt_charge_stays_spent_and_a_second_draw_is_a_second_charge",
            "test_every_epsilon.py::test_a_burnt_charge_still_counts_against_the_cap",
        ],
    ),
    mutation(
        "no witness before the noise",
        (HOLDS, '"drawing": (frozenset({"anchored"}),', '"drawing": (frozenset({"reserved", "anchored"}),'),
        (LEDGER_DRAWING, 'if found.state == "reserved":', "if False:"),
        tests=["test_ledger.py::test_drawing_needs_an_anchor_and_starts_once"],
    ),
    mutation(
        "a second draw on one charge",
        (HOLDS, '"drawing": (frozenset({"anchored"}),', '"drawing": (frozenset({"anchored", "drawing"}),'),
        tests=["test_ledger.py::test_drawing_needs_an_anchor_and_starts_once"],
    ),
    mutation(
        "drawn first, charged afterwards",
        (
            PIPELINE,
            "    hold = ledger.start_drawing(hold, names",
            "    def later():\n        return ledger.start_drawing(hold, names",
        ),
        (
            PIPELINE,
            "        drawing.draw(rng)\n",
            "        drawing.draw(rng)\n        hold = later()\n",
        ),
        tests=["test_every_epsilon.py::test_when_noise_is_drawn_its_charge_is_written_and_witnessed"],
    ),
    mutation(
        "the drawing not witnessed",
        (
            PIPELINE,
            "        site.witness.anchor(ledger.anchor_envelope())\n        drawing.draw",
            "        drawing.draw",
        ),
        tests=["test_every_epsilon.py::test_when_noise_is_drawn_its_charge_is_written_and_witnessed"],
    ),
    mutation(
        "rows left in the order of their persons",
        (
            DRAWING,
            "in rng.generator.permutation(len(self._noisy) + len(chosen.stayed))]",
            "in range(len(self._noisy) + len(chosen.stayed))]",
        ),
        tests=["test_pipeline.py::test_rows_do_not_stand_where_their_person_stood"],
    ),
    # -- what is printed ------------------------------------------------------------------------------------------
    mutation(
        "the paper's ε on the receipt",
        (
            RELEASE,
            "        epsilon=_stated(event, plan.budget.delta),",
            "        epsilon=plan.release.facts(plan).epsilon_paper or 0.0,",
        ),
        (
            RELEASE,
            '"epsilon": _stated(event, plan.budget.delta)',
            '"epsilon": plan.release.facts(plan).epsilon_paper or 0.0',
        ),
        tests=["test_every_epsilon.py::test_every_figure_of_a_receipt_follows_from_its_event_and_delta"],
    ),
    mutation(
        "another relation on the receipt",
        ("shared/mechanisms/base.py", 'neighbours: str = "replace_one"', 'neighbours: str = "add_remove"'),
        tests=["test_every_epsilon.py::test_the_receipt_says_who_is_protected_against_what"],
    ),
    mutation(
        "training left off the price",
        (PRESCRIBED, "return noise if training is None else", "return noise if True else"),
        tests=["test_postures.py::test_the_private_event_is_training_and_noise_together"],
    ),
    mutation(
        "a flow that nobody was charged for is used at the price of rows",
        (
            PIPELINE,
            "return sealed is not None and sealed.flow_of in trained",
            "return sealed is not None",
        ),
        tests=["test_flow_used_again.py::test_a_flow_of_a_release_without_a_training_is_charged_one"],
    ),
    mutation(
        "a wave that refits is charged the rows alone",
        (
            PIPELINE,
            "if base is None or not plan.release.draws_rows or refits(plan, plan.wave(wave)):",
            "if base is None or not plan.release.draws_rows:",
        ),
        tests=[
            "test_flow_used_again.py::test_waves_through_one_private_flow_are_charged_its_training_once_and_one_that_refits_again"
        ],
    ),
    mutation(
        "a receipt at the price of rows of its own flow",
        ("shared/releases/receipt.py", "reused = self.flow_of != self.release_id and _agree(", "reused = _agree("),
        tests=["test_flow_used_again.py::test_a_receipt_at_the_price_of_rows_is_true_only_of_another_releases_flow"],
    ),
    mutation(
        "the coordinator takes the price of rows beside any release",
        (
            "coordinator/services/collect/ingest.py",
            'if not any(training in found.event.get("events", ()) for found in fitted):',
            "if not fitted:",
        ),
        tests=[
            "test_flow_used_again.py::test_the_coordinator_takes_the_price_of_rows_only_beside_the_release_that_was_charged_the_training"
        ],
    ),
    mutation(
        "the sensitivity of one table for all of them",
        (TABLES, "sensitivity=sensitivity(len(self.tables))", "sensitivity=sensitivity(1)"),
        tests=[
            "test_tables.py::test_no_replacement_of_one_record_moves_the_counts_by_more_than_the_sensitivity_and_some_does"
        ],
    ),
    mutation(
        "tables: an impossible cell tells whether somebody is in it",
        (TABLES, "np.where(nowhere[table.of], 0, count)", "np.where(nowhere[table.of], np.sign(count), count)"),
        tests=["test_tables.py::test_what_the_plan_says_nobody_is_leaves_as_zero_whatever_the_records_say"],
    ),
    mutation(
        "slicing: half the noise",
        (SLICING, "rng.lattice_gaussian_steps(self.sigma, signal", "rng.lattice_gaussian_steps(self.sigma / 2, signal"),
        tests=["test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims[slicing]"],
    ),
    mutation(
        "slicing: directions longer than the law that is charged",
        (SLICING, "math.nextafter(1 / math.sqrt(self.d), 0.0)", "math.nextafter(1.0, 0.0)"),
        tests=["test_slicing.py::test_the_law_of_what_a_replacement_moves_is_the_one_that_is_charged"],
    ),
    mutation(
        "slicing: numbers no further apart than levels",
        (SLICING, "+ 4 * numeric)", "+ 2 * numeric)"),
        tests=["test_slicing.py::test_no_two_records_are_further_apart_than_the_diameter_and_some_are_that_far"],
    ),
    mutation(
        "slicing: rows of any length",
        (SLICING, "        over = length > 1\n", "        over = length > np.inf\n"),
        tests=["test_slicing.py::test_longer_rows_are_scaled_to_length_one_and_counted"],
    ),
    mutation(
        "slicing: a row past its bounds",
        (
            SLICING,
            "share = np.clip((np.where(absent, lower, value) - lower) / (upper - lower), 0.0, 1.0)",
            "share = (np.where(absent, lower, value) - lower) / (upper - lower)",
        ),
        tests=[
            "test_slicing.py::test_a_value_past_its_bounds_is_taken_at_the_bound_and_a_code_that_is_no_level_is_refused"
        ],
    ),
    mutation(
        "slicing: rounded directions for free",
        (SLICING, "distance=_up(distance * math.sqrt(1 + eta))", "distance=distance"),
        tests=["test_slicing.py::test_rounded_directions_cost_what_is_charged_for_them_and_hardly_anything"],
    ),
    mutation(
        "the sensitivity of one density for all of them",
        (GROUPS, "coordinates=2)", "coordinates=1)"),
        tests=[
            "test_densities.py::test_no_replacement_moves_more_counts_than_are_charged_nor_any_by_more_than_one_and_some_moves_them_all"
        ],
    ),
    mutation(
        "half the noise, in the densities",
        (GROUPS, "lattice_laplace_steps(self.scale,", "lattice_laplace_steps(self.scale / 2,"),
        tests=["test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims"],
    ),
    mutation(
        "somebody counted twice in a density",
        (
            DENSITY,
            "out += np.bincount(self.codes(block), minlength=self.size)",
            "out += np.bincount(np.append(self.codes(block), 0), minlength=self.size)",
        ),
        tests=["test_densities.py::test_everybody_is_counted_once_in_every_grid_on_edges_outside_and_missing"],
    ),
    mutation(
        "smooth densities: one person's half of the sensitivity",
        (SCALING, "return max(within, math.floor(further))", "return max(within, math.floor(further)) // 2"),
        tests=[
            "test_scaling.py::test_replacing_a_person_moves_no_sums_further_than_is_charged_which_is_a_part_of_the_paper_s_bound"
        ],
    ),
    mutation(
        "smooth densities: half of what plans from before the diameter are charged",
        (SCALING, "return 2 * int(np.abs(", "return int(np.abs("),
        tests=["test_densities.py::test_a_plan_from_before_the_diameter_keeps_its_hash_its_price_and_its_noise"],
    ),
    mutation(
        "smooth densities: persons who differ in one column only",
        (SCALING, "return max(within, math.floor(further))", "return within"),
        tests=["test_scaling.py::test_no_two_persons_of_any_small_table_are_further_apart_than_its_diameter[2]"],
    ),
    mutation(
        "smooth densities: pairs of cells that are passed over",
        (SCALING, "others[norms[others] > apart - norms[cell]]", "others[norms[others] > 1.2 * apart - norms[cell]]"),
        tests=["test_scaling.py::test_the_diameter_of_one_column_is_that_of_all_pairs_of_cells"],
    ),
    mutation(
        "smooth densities: signs that agree taken for signs that do not",
        (SCALING, "plus, minus = same + opposite, same - opposite", "plus, minus = same + opposite, opposite + same"),
        tests=["test_scaling.py::test_no_two_persons_of_any_small_table_are_further_apart_than_its_diameter"],
    ),
    mutation(
        "a plan from before is read by today's default",
        ("shared/plans/plan.py", 'dict(getattr(kind, "before", {}))', "{}"),
        tests=["test_densities.py::test_a_plan_from_before_the_diameter_keeps_its_hash_its_price_and_its_noise"],
    ),
    mutation(
        "smooth densities: the noise of another number of columns",
        (SCALING, "rng.lattice_laplace_steps(self.scale,", "rng.lattice_laplace_steps(self.scale / self.columns,"),
        tests=["test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims"],
    ),
    mutation(
        "local: a response true too often",
        (LOCAL, "(1 - 2.0**-40) * odds / (odds + self.grid.size - 1)", "odds / (odds + self.grid.size - 2)"),
        tests=[
            "test_local_and_quantiles.py::test_no_report_is_likelier_from_one_person_than_from_another_by_more_than_the_price"
        ],
    ),
    mutation(
        "quantiles: charged as adding or removing a person",
        (QUANTILES, "/ (4 * self.depth)", "/ (2 * self.depth)"),
        tests=[
            "test_local_and_quantiles.py::test_odd_columns_give_borders_in_order_within_the_bounds",
        ],
    ),
    mutation(
        "densities: the price of one group for all",
        (DENSITIES_PLAN, "coordinates=first.coordinates + sum(one.coordinates for one in alike)", "coordinates=2"),
        tests=["test_densities.py::test_every_way_of_releasing_is_charged_at_most_the_plan_s_epsilon_and_nearly_that"],
    ),
    mutation(
        "densities: noise for more than the group's part of the price",
        (GROUPS, "Laplace(scale=self.scale,", "Laplace(scale=2 * self.scale,"),
        tests=[
            "test_densities.py::test_the_plan_s_epsilon_is_the_total_of_all_groups_and_never_less_noise_than_it_asks_for"
        ],
    ),
    # -- networks -------------------------------------------------------------------------------------------------
    mutation(
        "half the noise, in the coordinates of nodes",
        (GRAND, "own.lattice_laplace_steps(self.scale,", "own.lattice_laplace_steps(self.scale / 2,"),
        tests=["test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims"],
    ),
    mutation(
        "the paper's scale at the price of p / ε",
        (GRAND, "scale = self.p / self.epsilon", "scale = 1 / self.epsilon"),
        tests=[
            "test_grand.py::test_the_price_of_a_node_is_epsilon_whatever_the_number_of_coordinates_and_known_before_it_runs"
        ],
    ),
    mutation(
        "the sensitivity of one coordinate for all of them",
        (GRAND, "sensitivity=1.0, coordinates=self.p)", "sensitivity=1.0, coordinates=1)"),
        tests=[
            "test_grand.py::test_the_price_of_a_node_is_epsilon_whatever_the_number_of_coordinates_and_known_before_it_runs"
        ],
    ),
    mutation(
        "α and the other direction privatised and not counted",
        (
            GRAND,
            'return (d + (model == "inner_product")) * (2 if directed else 1) + attributes',
            "return d + attributes",
        ),
        tests=["test_grand.py::test_coordinates_count_the_degree_both_directions_and_every_attribute"],
    ),
    mutation(
        "half the noise that was drawn, added",
        (GRAND, "np.round(u / grid) * grid + noise", "np.round(u / grid) * grid + noise / 2"),
        tests=[
            "test_grand.py::test_an_attack_finds_no_more_than_epsilon_and_more_than_it_where_the_scale_is_the_papers"
        ],
    ),
    mutation(
        "half the flips, in the labels of nodes",
        (LABELS, "own.chosen(keep_probability, 1)", "own.chosen((1 + keep_probability) / 2, 1)"),
        tests=["test_choices.py::test_a_label_is_told_with_exactly_the_odds_that_are_stated_and_charged"],
    ),
    mutation(
        "the odds of the commonest label for those of the rarest",
        (LABELS, "Fraction(min(self.counts), sum(self.counts))", "Fraction(max(self.counts), sum(self.counts))"),
        tests=["test_labels.py::test_no_label_s_odds_are_above_the_price_and_the_rarest_attains_it"],
    ),
    mutation(
        "the whole ε for the label, and the rest for the coordinates beside it",
        (NETWORK_SITE, "LabelPrivate(epsilon=self._release.parts()[0],", "LabelPrivate(epsilon=self._release.epsilon,"),
        tests=["test_network_release.py::test_a_site_tells_a_label_first_with_the_noise_that_is_charged"],
    ),
    mutation(
        "coordinates placed within the true label",
        (NETWORK_SITE, "own=self._labels.own, released=released)", "own=self._labels.own, released=self._labels.own)"),
        tests=["test_network_release.py::test_a_site_tells_a_label_first_with_the_noise_that_is_charged"],
    ),
    mutation(
        "a label that is charged nothing",
        (
            NETWORK_PLAN,
            "Composition(events=(RandomisedResponse(epsilon=self.parts()[0]), coordinates))",
            "coordinates",
        ),
        tests=["test_network_release.py::test_a_label_told_first_is_a_part_of_the_price_and_not_an_addition_to_it"],
    ),
    mutation(
        "one noise for all nodes",
        (RANDOM, "hashlib.blake2b(name.encode(), key=key", 'hashlib.blake2b(b"", key=key'),
        tests=["test_grand.py::test_noise_lies_on_the_grid_and_is_each_nodes_own_whoever_else_is_there"],
    ),
    mutation(
        "controls that count for half of those whom they stand for, in a fit",
        (LATENT_FIT, "self.weight = self._strata.c / (2 if symmetric else 1)", "self.weight = self._strata.c / 2"),
        tests=[
            "test_controls.py::test_a_sample_of_pairs_has_the_likelihood_and_the_slopes_of_all_pairs_on_average[True]"
        ],
    ),
    mutation(
        "controls that count for those too whom a node is tied to",
        (LATENTS, "self._kept[some] -= self._weight", "self._kept[some] -= 0"),
        tests=[
            "test_controls.py::test_nodes_are_read_off_a_sample_as_off_everybody_on_average_and_each_by_itself[True]"
        ],
    ),
    mutation(
        "a node that goes on as long as its neighbours in the table do",
        (LATENTS, "beta += np.where(moving[:, None], step, 0.0)", "beta += step"),
        tests=[
            "test_grand.py::test_changing_a_nodes_ties_leaves_every_other_private_coordinate_the_same_to_the_last_bit"
        ],
    ),
    mutation(
        "a released network taken for one as observed",
        (NETWORKS, "return 1 + n / reference_size", "return 1.0"),
        tests=[
            "test_networks.py::test_the_closed_form_is_the_jackknife_of_leaving_every_node_out_and_grows_with_the_frame"
        ],
    ),
    # -- the postures ---------------------------------------------------------------------------------------------
    mutation(
        "holdout: the flow fitted on released rows too",
        (FITTING, "fit_flow(x[train], ", "fit_flow(x, "),
        tests=["test_postures.py::test_no_released_record_changes_anything_that_is_fitted"],
    ),
    mutation(
        "holdout: those who train released as well",
        (FITTING, 'if plan.posture != "holdout":', "if True:"),
        tests=["test_postures.py::test_the_population_of_a_holdout_release_is_those_who_are_released"],
    ),
    mutation(
        "public: the flow fitted on records",
        (
            FITTING,
            "mechanism=mechanism(plan, public_flow(plan, encoder))",
            "mechanism=_local(plan, encoder, x, persons, rng, progress).mechanism",
        ),
        tests=["test_postures.py::test_no_released_record_changes_anything_that_is_fitted"],
    ),
    mutation(
        "private: half the noise in a training step",
        (
            SGD,
            "rng.lattice_gaussian_steps(sigma, total.shape, grid)",
            "rng.lattice_gaussian_steps(sigma / 2, total.shape, grid)",
        ),
        tests=["test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims"],
    ),
    mutation(
        "private: gradients not clipped",
        (SGD, "factor = np.minimum(clip / norm, 1.0)", "factor = np.ones_like(norm)"),
        tests=["test_two_worlds.py::test_a_training_step_keeps_its_claim_at_two_opposite_records"],
    ),
    mutation(
        "private: the realised batch as divisor",
        (SGD, "/ (private.rate * n)", "/ max(1, len(rows))"),
        tests=["test_two_worlds.py::test_a_training_step_divides_by_the_expected_batch"],
    ),
    mutation(
        "federated: half the noise at a site",
        (
            FEDERATED,
            "noise_multiplier=self.noise_multiplier, steps=self.steps, clip",
            "noise_multiplier=self.noise_multiplier / 2, steps=self.steps, clip",
        ),
        tests=["test_noise_levels.py::test_ten_thousand_draws_have_the_scale_that_the_event_claims"],
    ),
    mutation(
        "federated: one round charged for all",
        (
            FEDERATED,
            "noise_multiplier=self.noise_multiplier, steps=self.steps)",
            "noise_multiplier=self.noise_multiplier, steps=self.local_steps)",
        ),
        tests=["test_federation.py::test_the_price_is_that_of_all_steps_of_all_rounds_to_everybody"],
    ),
    mutation(
        "federated: a step more than is charged",
        (AT_SITES, "for _ in range(federated.local_steps):", "for _ in range(federated.local_steps + 1):"),
        tests=["test_federation.py::test_a_site_takes_as_many_steps_as_are_charged_at_the_planned_rate_and_noise"],
    ),
    mutation(
        "federated: a round answered twice, with other noise",
        (AT_SITES, "earlier = source.answered(round_)", "earlier = None"),
        tests=["test_federation.py::test_a_round_asked_again_gets_the_same_answer_and_with_other_weights_none"],
    ),
    mutation(
        "federated: the first answer sent again, whatever was asked",
        (AT_SITES, "if earlier[0] != start_digest:", "if False:"),
        tests=["test_federation.py::test_a_round_asked_again_gets_the_same_answer_and_with_other_weights_none"],
    ),
    mutation(
        "federated: records read before the round is claimed",
        (
            AT_SITES,
            "    source.allow(round_)\n    records = source.records()\n",
            "    records = source.records()\n    source.allow(round_)\n",
        ),
        tests=[
            "test_federation.py::test_an_answer_is_kept_before_it_is_sent_and_a_claim_stands_before_records_are_read"
        ],
    ),
    mutation(
        "federated: rounds without end",
        (AT_SITES, "not 1 <= round_ <= plan.federated.rounds", "round_ < 1"),
        tests=["test_federation.py::test_a_bad_question_is_refused_before_a_round_is_claimed_or_a_record_is_read"],
    ),
    mutation(
        "federated: an old answer counted again",
        (AT_HUB, "if mark in progress.seen or np.array_equal(weights, start):", "if np.array_equal(weights, start):"),
        tests=["test_federation.py::test_an_answer_that_was_sent_before_is_refused_though_it_claims_to_be_new"],
    ),
    mutation(
        "federated: an answer from any distance counted",
        (AT_HUB, "if moved > most:", "if False:"),
        tests=[
            "test_federation.py::test_an_answer_that_cannot_be_one_is_refused_with_a_reason_and_the_others_train_on"
        ],
    ),
    mutation(
        "federated: Adam begins anew after a crash",
        (AT_HUB, "if state.mean is not None and state.square is not None:", "if False:"),
        tests=["test_federation.py::test_a_training_that_is_killed_goes_on_to_the_very_flow_of_one_that_is_not"],
    ),
    mutation(
        "a receipt believed instead of recomputed",
        ("coordinator/services/compute/tasks.py", "        receipt.require_true(plan)\n", ""),
        tests=["test_collect.py::test_wrong_content_under_valid_signatures_is_kept_apart_and_told"],
    ),
    # -- from the plan to what leaves ---------------------------------------------------------------------------------
    mutation(
        "quantiles: twice the sharpness",
        (
            QUANTILES,
            "rng.likeliest(score - score.min(), self.rate)",
            "rng.likeliest(score - score.min(), 2 * self.rate)",
        ),
        tests=[QUANTILE_ODDS],
    ),
    mutation(
        "quantiles: a fifth more of the sharpness",
        (
            QUANTILES,
            "rng.likeliest(score - score.min(), self.rate)",
            "rng.likeliest(score - score.min(), self.rate * Fraction(6, 5))",
        ),
        tests=[QUANTILE_ODDS],
    ),
    *(
        mutation(
            f"private: gradients clipped at {factor} times the plan's norm",
            (SGD, "private.clip * (1 - ROOM))[0]", f"{factor} * private.clip * (1 - ROOM))[0]"),
            tests=[MOVED_STEP],
        )
        for factor in (1.1, 1.5, 2)
    ),
    mutation(
        "latent noise cut off at four scales",
        (
            LATENT,
            "steps += rng.lattice_gaussian_steps(self._sigma, steps.shape, grid)",
            "most = int(4 * self._sigma / grid)\n"
            "        steps += np.clip(rng.lattice_gaussian_steps(self._sigma, steps.shape, grid), -most, most)",
        ),
        tests=[ROW],
    ),
    mutation(
        "private: noise cut off at four scales",
        (
            SGD,
            "+ rng.lattice_gaussian_steps(sigma, total.shape, grid)",
            "+ np.clip(rng.lattice_gaussian_steps(sigma, total.shape, grid), -4 * sigma // grid, 4 * sigma // grid)",
        ),
        tests=[STEP],
    ),
    mutation(
        "private: steps of too much noise drawn as quiet ones",
        (
            SGD,
            "        return self._drawn.pop()",
            "        return np.clip(self._drawn.pop(), -4 * sigma // grid, 4 * sigma // grid)",
        ),
        tests=[STEP],
    ),
    mutation(
        "private: one portion of noise for all steps",
        (SGD, "return self._drawn.pop()", "return self._drawn[-1]"),
        tests=[STEP],
    ),
    mutation(
        "private: a tenth of the noise of the multiplier",
        (
            SGD,
            "sigma = private.noise_multiplier * private.clip",
            "sigma = private.noise_multiplier * private.clip / 10",
        ),
        tests=[STEP],
    ),
    mutation(
        "private: a tenth more of the records in a step",
        (SGD, "rng.chosen(private.rate, n)", "rng.chosen(min(1.0, 1.1 * private.rate), n)"),
        tests=[SAMPLE],
    ),
    mutation(
        "densities: noise cut off at four scales",
        (
            GROUPS,
            "rng.lattice_laplace_steps(self.scale, counts.shape, 1.0)",
            "rng.lattice_laplace_steps(self.scale, counts.shape, 1.0).clip(-int(4 * self.scale), int(4 * self.scale))",
        ),
        tests=[FIGURE],
    ),
    mutation(
        "densities: one-sided noise in cells that nobody is in",
        (
            GROUPS,
            "counts + rng.lattice_laplace_steps(self.scale, counts.shape, 1.0)",
            "np.where(counts, counts + (e := rng.lattice_laplace_steps(self.scale, counts.shape, 1.0)), np.abs(e))",
        ),
        tests=[FIGURE],
    ),
    mutation(
        "densities: nine tenths of the sensitivity",
        (GROUPS, "Laplace(scale=self.scale, sensitivity=1.0,", "Laplace(scale=self.scale, sensitivity=0.9,"),
        tests=[MOVED],
    ),
    mutation(
        "smooth densities: noise cut off at four scales",
        (
            SCALING,
            "(2**self.basis.level,) * self.columns, 1.0)\n",
            "(2**self.basis.level,) * self.columns, 1.0).clip(-int(4 * self.scale), int(4 * self.scale))\n",
        ),
        tests=[FIGURE],
    ),
    mutation(
        "smooth densities: seven tenths of the sensitivity",
        (SCALING, "sensitivity=float(self.sensitivity)", "sensitivity=0.7 * float(self.sensitivity)"),
        tests=[MOVED],
    ),
    mutation(
        "local: one record's noise for all of them",
        (
            LOCAL,
            "rng.lattice_laplace_steps(scale, (rows, k), 1.0).sum(axis=0)",
            "rng.lattice_laplace_steps(scale, (k,), 1.0)",
        ),
        tests=[FIGURE, ASKED],
    ),
    mutation(
        "local: the other cell may be the true one",
        (LOCAL, "(codes + 1 + rng.uniform(k - 1, len(codes))) % k", "(codes + rng.uniform(k, len(codes))) % k"),
        tests=[REPORT_ODDS],
    ),
    mutation(
        "local: responses true at twice the price",
        (LOCAL, "odds = math.exp(self.epsilon)\n", "odds = math.exp(2 * self.epsilon)\n"),
        tests=[REPORT_ODDS],
    ),
    mutation(
        "tables: sites that lie apart are read as if alike",
        (TABLES_TOGETHER, "(_apart if apart else _alike)", "(_alike if apart else _alike)"),
        tests=[BETWEEN_SITES],
    ),
    mutation(
        "tables: one-sided noise",
        (
            TABLES,
            "[count + rng.lattice_gaussian_steps(self.sigma, count.shape, 1.0) for",
            "[count + np.abs(rng.lattice_gaussian_steps(self.sigma, count.shape, 1.0)) for",
        ),
        tests=[FIGURE],
    ),
    mutation(
        "tables: the rows of a table share their noise",
        (
            TABLES,
            "rng.lattice_gaussian_steps(self.sigma, count.shape, 1.0)",
            "rng.lattice_gaussian_steps(self.sigma, count.shape[-1:], 1.0)",
        ),
        tests=[FIGURE, ASKED],
    ),
    mutation(
        "tables: nine tenths of the sensitivity",
        (
            TABLES,
            "Gaussian(sigma=self.sigma, sensitivity=sensitivity(len(self.tables)))",
            "Gaussian(sigma=self.sigma, sensitivity=0.9 * sensitivity(len(self.tables)))",
        ),
        tests=[MOVED],
    ),
    mutation(
        "moments: noise cut off at four scales",
        (
            MOMENTS_DRAW,
            "return sums + noise.lattice_gaussian_steps(sigma_of(spec, block), sums.shape, grids_of(spec)[block])",
            "most = int(4 * sigma_of(spec, block) / grids_of(spec)[block])\n"
            "    drawn = noise.lattice_gaussian_steps(sigma_of(spec, block), sums.shape, grids_of(spec)[block])\n"
            "    return sums + np.clip(drawn, -most, most)",
        ),
        tests=[FIGURE],
    ),
    mutation(
        "moments: nine tenths of the sensitivity",
        (
            MOMENTS_SPEC,
            "return Gaussian(sigma=1 / _mu(spec.epsilon, spec.delta), sensitivity=1.0)",
            "return Gaussian(sigma=1 / _mu(spec.epsilon, spec.delta), sensitivity=0.9)",
        ),
        tests=[MOVED_MOMENTS],
    ),
    mutation(
        "moments: the released shares of levels without their noise",
        (
            "shared/mechanisms/moments/cohort.py",
            "theta=theta, figures=self.figures.redrawn(rng, noise, _wide_means(self.model, theta)))",
            "theta=theta)",
        ),
        tests=["test_moments_factors.py::test_the_noise_of_a_level_s_share_is_in_its_variance"],
    ),
    mutation(
        "moments: a lens of the true histograms",
        (
            MOMENTS_DRAW,
            "    lens = design.lens(release)\n",
            "    lens = design.lens(replace(release, histograms=tuple(summed(design.counts))))\n",
        ),
        tests=[LENS],
    ),
    mutation(
        "moments: a score of blocks without noise",
        (
            MOMENTS_DRAW,
            "    score = pilot(release, design, points)\n",
            "    score = pilot(replace(release, moments=inner, products=products), design, points)\n",
        ),
        tests=[LENS],
    ),
    mutation(
        "slicing: noise cut off at four scales",
        (
            SLICING,
            "noisy = signal + rng.lattice_gaussian_steps(self.sigma, signal.shape, fine)",
            "most = int(4 * self.sigma / fine)\n        "
            "noisy = signal + np.clip(rng.lattice_gaussian_steps(self.sigma, signal.shape, fine), -most, most)",
        ),
        tests=[FIGURE],
    ),
    mutation(
        "slicing: nine tenths of the distance between two rows",
        (
            SLICING,
            "return root if root * root == squared else math.nextafter(root, math.inf)",
            "return 0.9 * root",
        ),
        tests=[MOVED_LINE],
    ),
    mutation(
        "slicing: lines in the order of their persons",
        (SLICING_PLAN, "order = rng.generator.permutation(len(lines))", "order = np.arange(len(lines))"),
        tests=[ORDER],
    ),
    mutation(
        "the columns of a row share their noise",
        (
            LATENT,
            "gaussian_steps(self._sigma, steps.shape, grid)",
            "gaussian_steps(self._sigma, (len(steps), 1), grid)",
        ),
        tests=[ROW],
    ),
    mutation(
        "nine tenths of the diameter, in the event of rows",
        (LATENT, "sensitivity=2 * self._reach)", "sensitivity=1.8 * self._reach)"),
        tests=[MOVED_ROW],
    ),
    mutation(
        "copied rows of an earlier wave after those that were drawn",
        (
            DRAWING,
            "rng.generator.permutation(len(self._noisy) + len(chosen.stayed))]",
            "rng.generator.permutation(len(self._noisy))]\n        order += range(len(self._noisy), len(self._noisy) "
            "+ len(chosen.stayed))",
        ),
        tests=[ORDER],
    ),
    mutation(
        "rows of a network in the order of their persons",
        (NETWORK_SITE, "order = [int(k) for k in rng.generator.permutation(self.n)]", "order = list(range(self.n))"),
        tests=[ORDER],
    ),
    mutation(
        "one-sided noise on ranks",
        (GRAND, "np.round(u / grid) * grid + noise", "np.round(u / grid) * grid + np.abs(noise)"),
        tests=[RANK],
    ),
    mutation(
        "one noise for all coordinates of a node",
        (
            GRAND,
            "own.lattice_laplace_steps(self.scale, self.p, self._grid)",
            "own.lattice_laplace_steps(self.scale, 1, self._grid)",
        ),
        tests=[RANK],
    ),
    mutation(
        "another label drawn evenly, and not by the persons held out",
        (LABELS, 'np.searchsorted(ends, drawn[1], side="right")', "drawn[1] % len(ends)"),
        tests=[LABEL_ODDS],
    ),
    mutation(
        "a sample drawn by comparing doubles",
        (
            RANDOM,
            "return np.asarray(self._words(count) < np.uint64(threshold))",
            "return np.asarray(self._words(count) / 2.0**64 < rate)",
        ),
        tests=[IN_SAMPLE],
    ),
    mutation(
        "a sampling rate rounded up",
        (RANDOM, "threshold = math.floor(Fraction(rate) * 2**64)", "threshold = math.ceil(Fraction(rate) * 2**64)"),
        tests=[IN_SAMPLE],
    ),
    mutation(
        "a whole number past the bound taken for the first",
        (
            RANDOM,
            "        redo = np.flatnonzero(value >= t)\n",
            "        value[value >= t] = 0\n        redo = np.flatnonzero(value >= t)\n",
        ),
        tests=["test_choices.py::test_whole_numbers_are_even_on_the_words_of_the_keystream"],
    ),
    mutation(
        "holdout: persons who withdrew still train",
        (
            POPULATION,
            "for i in sorted({*range(len(persons))} - set(eligible)) if persons[i] not in withdrawn)",
            "for i in sorted({*range(len(persons))} - set(eligible)))",
        ),
        tests=[
            "test_whole_path.py::test_whoever_withdrew_is_looked_at_by_no_later_release_not_even_to_train_on",
        ],
    ),
    mutation(
        "another key for the persons, unnoticed",
        (LEDGER_PERSONS, "other.space and other.space != space]", "other.space and not space]"),
        tests=["test_whole_path.py::test_persons_told_apart_by_another_key_are_not_taken_for_new_ones"],
    ),
    mutation(
        "a warning of records beyond the bounds of a density",
        (
            "site_agent/release/checks.py",
            "return replace(_BEYOND, measured=float(clipped),",
            'return replace(_BEYOND, outcome="warning" if clipped else "note", measured=float(clipped),',
        ),
        tests=["test_whole_path.py::test_a_record_decides_nothing_that_leaves_beside_the_figures"],
    ),
    mutation(
        "restore: a word for one restore excuses the next",
        ("shared/wire/tree_heads.py", "        if entry in known:\n            continue\n", ""),
        tests=[
            "test_restore.py::test_a_log_put_back_without_a_word_is_a_fork_until_it_says_so_and_an_old_word_excuses_nothing",
            "test_log_watched.py::test_what_one_session_saw_of_the_log_the_next_one_holds_the_coordinator_to",
        ],
    ),
    mutation(
        "restore: any head passes for the log that was taken up again",
        (
            "shared/wire/tree_heads.py",
            "if again is not None and again.grew[0] and (entry, said) in again.restored:",
            "if again is not None:",
        ),
        tests=["test_log_watched.py::test_a_word_excuses_nothing_that_was_seen_before_the_size_it_names"],
    ),
    mutation(
        "restore: what anybody claims was acknowledged is taken without the plan's limits",
        (
            "coordinator/services/collect/service.py",
            "            require_countersigned(one, self._authority.witness.public, site.site)\n",
            "            pass\n",
        ),
        tests=["test_restore.py::test_only_what_the_coordinator_signed_for_this_site_is_taken_again_unasked"],
    ),
    mutation(
        "answers: a proof of another release is as good",
        ("shared/wire/tree_heads.py", '!= ("release", bundle):', '!= ("release", body.get("bundle")):'),
        tests=[
            "test_log_watched.py::test_every_release_that_an_answer_rests_on_is_proven_to_stand_in_the_signed_log",
        ],
    ),
    mutation(
        "log verify: a release's row is not held against what was signed",
        ("coordinator/store/verify.py", "        require_as_signed(release)\n", ""),
        tests=["test_restore.py::test_a_hidden_release_is_found_by_its_site_and_by_the_log"],
    ),
    mutation(
        "backup: a key in clear goes along in the first line",
        (
            "shared/base/archive.py",
            "path.is_file() and is_locked(data := path.read_bytes())",
            "path.is_file() and (data := path.read_bytes())",
        ),
        tests=["test_restore.py::test_a_backup_holds_what_is_in_the_write_ahead_log_and_opens_for_who_leads_alone"],
    ),
    mutation(
        "restore: a ledger from a backup charges at once",
        ("site_agent/ledger/charge.py", "        require_settled(book.path)\n", ""),
        tests=["test_recovery.py::test_a_draw_that_was_due_when_the_backup_was_made_is_not_drawn_twice"],
    ),
    # -- of another reader's choosing, beside those above --------------------------------------------------------
    mutation(
        "a signal past the bound left as the doubles made it",
        (LATENT, "        while rows.size:\n            longest", "        while not len(steps):\n            longest"),
        tests=["test_latent_noise.py::test_a_signal_beyond_the_bound_is_pulled_back_whatever_the_doubles_said"],
    ),
    mutation(
        "private: a grid coarser than the room for rounding",
        (SGD, "finest = private.clip * ROOM / 2 / math.sqrt", "finest = private.clip / 2 / math.sqrt"),
        tests=["test_private_flow.py::test_rounding_takes_no_more_than_the_room_that_clipping_leaves_it"],
    ),
    mutation(
        "private: a start that is centred on the records",
        (
            FITTING,
            "layers = private_layers(start.inverse(x), plan",
            "y = start.inverse(x)\n    layers = private_layers(y - y.mean(axis=0), plan",
        ),
        tests=[MOVED_STEP],
    ),
    mutation(
        "network counts: the solver's room left off the price",
        (CAPPED, "    return cap + 1 + slack(cap)", "    return cap"),
        tests=[
            "test_network_counts.py::test_nobody_moves_a_block_by_more_than_its_sensitivity_and_somebody_moves_each_by_nearly_as_much"
        ],
    ),
    mutation(
        "network counts: sets that are not looked at left out of the bound",
        (PACKING, "        return max(0.0, worth - own)", "        return 0.0"),
        tests=[
            "test_network_counts.py::test_a_count_among_persons_whom_all_know_is_the_optimum_whatever_solves_it",
        ],
    ),
    mutation(
        "network counts: a value whose bounds have not met",
        (PACKING, "        while not high - low <= room:", "        while digits < 20:"),
        tests=["test_network_counts.py::test_where_doubles_do_not_get_there_decimals_do"],
    ),
    mutation(
        "network counts: ends charged as if every edge had one",
        (COUNTS_PLAN, '("ends", 4, levels)', '("ends", 2, levels)'),
        tests=[
            "test_network_counts.py::test_nobody_moves_a_block_by_more_than_its_sensitivity_and_somebody_moves_each_by_nearly_as_much"
        ],
    ),
    mutation(
        "network counts: places as the table has them",
        (COUNTS_PLAN, "order = rng.spawn(1)[0].order(len(records))", "order = np.arange(len(records))"),
        tests=[
            "test_network_counts.py::test_where_a_person_stands_in_the_table_moves_no_count_by_more_than_the_price_says"
        ],
    ),
    mutation(
        "network counts: one noise for all levels",
        (
            COUNTS_PLAN,
            "rng.lattice_laplace_steps(count.scale, exact.shape, 1.0)",
            "rng.lattice_laplace_steps(count.scale, (1,), 1.0)",
        ),
        tests=[FIGURE],
    ),
    mutation(
        "network counts: mixing without a cap",
        (COUNTS_PLAN, "return [int(capped.kept_degrees(network, count.cap).sum()) // 2]", "return [network.nnz // 2]"),
        tests=[
            "test_network_counts.py::test_nobody_moves_a_block_by_more_than_its_sensitivity_and_somebody_moves_each_by_nearly_as_much"
        ],
    ),
    mutation(
        "a reservation for new persons taken up for everybody",
        (
            CHARGE,
            "and (dict(hold.event), hold.delta, hold.touches) == (dict(event), reservation.delta, reservation.touches)",
            "and (dict(hold.event), hold.delta) == (dict(event), reservation.delta)",
        ),
        tests=["test_waves.py::test_a_reservation_for_other_persons_is_not_carried_over"],
    ),
    mutation(
        "an anchor from before the reservation witnesses it",
        (LEDGER_DRAWING, "if receipt.seq < book.hold(hold.release_id).reserved_seq:", "if receipt.seq < 0:"),
        tests=["test_ledger.py::test_an_anchor_of_another_history_or_from_before_the_reservation_is_refused"],
    ),
    mutation(
        "a draw that a crash cut short is free again",
        (
            LEDGER_DRAWING,
            '        if hold.state == "drawing":\n            reach("ledger.recover.before_burn")',
            '        if hold.state == "drawn":\n            reach("ledger.recover.before_burn")',
        ),
        tests=["test_ledger.py::test_recovery_burns_what_was_drawing_and_resumes_the_rest"],
    ),
    mutation(
        "an undrawn release of new persons counted beside nobody",
        (
            COMPOSED,
            "                out |= {mask | 1 << k for mask in drawn if not mask & ~possible}",
            "                out |= {1 << k for mask in drawn if not mask & ~possible}",
        ),
        tests=[
            "test_waves.py::test_a_burnt_draw_may_be_drawn_again_for_its_price_and_an_unknown_one_counts_against_everybody"
        ],
    ),
    mutation(
        "all studies of a site cost what the dearest does",
        (COMPOSED, "np.sum([bounds[k][0] for k in group], axis=0)", "np.max([bounds[k][0] for k in group], axis=0)"),
        tests=["test_ledger.py::test_the_site_may_cap_all_its_studies_together"],
    ),
    mutation(
        "a word about other persons is good for any table",
        (
            LEDGER_PERSONS,
            "(known.confirmed, known.confirmed_table) != (hold.wave, snapshot)",
            "known.confirmed != hold.wave",
        ),
        tests=["test_persons.py::test_a_signature_lets_one_wave_of_other_persons_through"],
    ),
    mutation(
        "whom a release touched that was taken back after it left is forgotten",
        (
            LEDGER_PERSONS,
            '        and (other.phase != "burnt" or other.left)\n    ]\n\n\ndef _earlier',
            '        and other.phase != "burnt"\n    ]\n\n\ndef _earlier',
        ),
        tests=["test_persons.py::test_who_was_in_a_release_that_may_have_left_is_remembered_though_it_was_burnt"],
    ),
    mutation(
        "an attack that breaks down on some records holds the release up",
        (
            PIPELINE,
            "audited = attack() if plan.records_decide else checks.carried_out(attack, drawing.unattacked)",
            "audited = attack()",
        ),
        tests=["test_gates.py::test_an_attack_that_breaks_down_on_these_records_holds_nothing_up"],
    ),
    mutation(
        "one person more behind each combination of quasi-identifiers than is asked for",
        (
            "site_agent/release/pipeline/before_draw.py",
            "counts.sharing < limits.minimum_k",
            "counts.sharing <= limits.minimum_k",
        ),
        tests=["test_quasi_identifiers.py::test_as_many_as_the_plan_asks_for_are_enough"],
    ),
    mutation(
        "a combination of few is drawn where the plan asks for more",
        ("site_agent/release/pipeline/before_draw.py", "counts.sharing < limits.minimum_k", "False"),
        tests=[
            "test_quasi_identifiers.py::test_a_combination_of_fewer_than_the_plan_asks_for_is_refused_before_the_draw_and_no_figure_is_told"
        ],
    ),
    mutation(
        "combinations of quasi-identifiers decide where everybody is promised an epsilon",
        (
            "site_agent/release/pipeline/before_draw.py",
            "if not plan.records_decide or not places:",
            "if not places:",
        ),
        tests=[
            "test_quasi_identifiers.py::test_where_everybody_released_is_promised_something_it_is_a_note_and_no_site_makes_more_of_it"
        ],
    ),
    mutation(
        "a class of as many as are asked for is told as too small",
        ("site_agent/records/quasi_identifiers.py", "few = size < k", "few = size <= k"),
        tests=["test_quasi_identifiers.py::test_a_class_is_all_who_share_their_bands_and_what_is_missing_is_one"],
    ),
    mutation(
        "a part of a question's sites decides the knots of its curve",
        ("coordinator/services/compute/parts.py", " or question.unsettled or ", " or "),
        tests=["test_parts.py::test_knots_that_all_sites_decide_are_not_decided_by_a_part"],
    ),
    mutation(
        "a floor of a site that looks at nothing",
        ("site_agent/release/pipeline/before_charge.py", "    site.floors.require_named(plan)\n", ""),
        tests=["test_quasi_identifiers.py::test_a_site_that_asks_for_it_takes_no_plan_of_rows_that_names_none"],
    ),
    mutation(
        "a table that changed after the seal holds the release up",
        (PIPELINE, "elif not checks.carried_out(resumed, False):", "elif not resumed():"),
        tests=["test_gates.py::test_a_release_that_was_interrupted_is_held_alike_whatever_became_of_the_records"],
    ),
    mutation(
        "local: Laplace reports charged for one cell of the two that move",
        (LOCAL, "sensitivity=1.0, coordinates=2)", "sensitivity=1.0, coordinates=1)"),
        tests=[MOVED],
    ),
    mutation(
        "quantiles: one level charged for all",
        (QUANTILES, "Composition(events=(each,) * self.depth)", "Composition(events=(each,))"),
        tests=[QUANTILE_ODDS],
    ),
    mutation(
        "a note that a record made asks for a tick",
        (
            "site_agent/release/pipeline/opened.py",
            'return tuple(check for check in self.checks if check.outcome == "warning")',
            'return tuple(check for check in self.checks if check.outcome == "warning" or check.notable)',
        ),
        tests=[
            "test_gates.py::test_what_checks_and_attacks_find_in_records_is_a_note_to_the_approver_and_nothing_else"
        ],
    ),
    mutation(
        "an inspector is told what was measured",
        ("site_agent/release/outbox.py", '"threshold": check.get("policy")}', '"threshold": check.get("measured")}'),
        tests=["test_export.py::test_no_count_of_records_is_in_it_but_the_n_of_a_receipt"],
    ),
    mutation(
        "federated: steps of more records than rounding has room for",
        (AT_SITES, "    require_room(len(y), federated.rate)\n", ""),
        tests=[
            "test_federation.py::test_a_round_of_more_records_than_the_room_for_rounding_was_calculated_for_is_refused"
        ],
    ),
    mutation(
        "a withdrawal of consent witnessed at once",
        (
            "site_agent/ledger/entries.py",
            '(SIGNED - {"persons_withdrew", "persons_confirmed", "sum_consented"})',
            '(SIGNED - {"persons_confirmed", "sum_consented"})',
        ),
        tests=[
            "test_waves.py::test_a_head_of_the_ledger_tells_of_no_withdrawal_of_consent_before_something_else_asks_for_one"
        ],
    ),
    mutation(
        "a member of a sum may have any name",
        (SUM_PLAN, "strange = [site for site in members if not is_word(site)]", "strange: list[str] = []"),
        tests=["test_members_keys.py::test_no_member_has_a_name_that_reads_as_another_hospitals_line"],
    ),
    mutation(
        "two members of a sum differ by a capital letter",
        (SUM_PLAN, "alike = Counter(site.lower() for site in members)", "alike = Counter(members)"),
        tests=["test_members_keys.py::test_no_member_has_a_name_that_reads_as_another_hospitals_line"],
    ),
    mutation(
        "an approver consents to one order twice",
        (CONSENT, "if hold.consent == page.asked and name in hold.consents:", "if hold.consents and False:"),
        tests=[
            "test_members_keys.py::test_a_consent_says_what_holds_if_the_keys_not_compared_are_the_coordinators_and_keeps_which_were"
        ],
    ),
    mutation(
        "a consent keeps no fingerprint of the keys that were compared",
        (CONSENT, "    if compared:\n        document", "    if not compared:\n        document"),
        tests=[
            "test_members_keys.py::test_a_consent_says_what_holds_if_the_keys_not_compared_are_the_coordinators_and_keeps_which_were"
        ],
    ),
    mutation(
        "a text of the plan has lines of its own on a page",
        (TERMINAL, 'return _BREAKS.sub(" ", str(value))', "return str(value)"),
        tests=["test_members_keys.py::test_no_text_of_the_plan_reads_as_lines_of_the_page_that_a_steward_decides_by"],
    ),
    mutation(
        "status names a release that a restored ledger may not make",
        (STATUS, "if forgotten or (desk.home / RESTORED).exists():", "if (desk.home / RESTORED).exists():"),
        tests=[
            "test_site_cli.py::test_a_site_put_back_is_refused_counts_what_it_lost_and_goes_on_when_the_lead_allows_it"
        ],
    ),
    mutation(
        "status names a wave that has no room left",
        (STATUS, "return due[0] in found", "return False and due[0] in found"),
        tests=[
            "test_site_cli.py::test_a_site_put_back_is_refused_counts_what_it_lost_and_goes_on_when_the_lead_allows_it"
        ],
    ),
    mutation(
        "records outside a subgroup in a secure sum's variant",
        (SUM_VARIANTS, "return np.where(self.variant.among(x)", "return np.where(np.ones(len(x), dtype=bool)"),
        tests=["test_secure_sum_variants.py::test_whoever_is_not_of_a_variant_adds_nothing_to_it"],
    ),
    mutation(
        "events outside the window of a secure sum's variant",
        (SUM_VARIANTS, "np.where((start < time) & (time <= stop), event, 0.0)", "event"),
        tests=["test_secure_sum_variants.py::test_with_little_noise_every_variant_is_the_records_own"],
    ),
    mutation(
        "hazards of a secure sum's variant that fall",
        (SUM_LOOKS, "row[0] != 0 or (np.diff(row) < 0).any() for row", "row[0] != 0 for row"),
        tests=[
            "test_secure_sum_variants.py::test_a_look_with_variants_is_the_same_read_back_and_one_with_others_is_refused"
        ],
    ),
    mutation(
        "half the noise, in a site's share of a secure sum",
        (SUM_SITE, "lattice_gaussian_steps(terms.share_sigma,", "lattice_gaussian_steps(terms.share_sigma / 2,"),
        tests=[
            "test_secure_sum.py::test_the_noise_of_all_but_the_lost_and_the_colluders_has_the_standard_deviation_of_the_terms"
        ],
    ),
    mutation(
        "a secure sum's noise shared among the lost and the colluders, too",
        (
            SUM_TERMS,
            "return self.sigma / math.sqrt(len(self.members) - self.drop_outs - self.colluders)",
            "return self.sigma / math.sqrt(len(self.members))",
        ),
        tests=[
            "test_secure_sum.py::test_the_noise_of_all_but_the_lost_and_the_colluders_has_the_standard_deviation_of_the_terms"
        ],
    ),
    mutation(
        "a secure sum's threshold at two thirds and one",
        (
            SUM_TERMS,
            "return len(self.members) - self.drop_outs\n",
            "return 2 * len(self.members) // 3 + 1\n",
        ),
        tests=["test_secure_sum.py::test_a_coordinator_with_half_of_the_sites_gets_no_two_lists_of_survivors_signed"],
    ),
    mutation(
        "a secure sum opened a second time",
        (
            SUM_SITE,
            "        agreement.require(self.terms, Lists.SURVIVORS, self._survivors)\n        self._step += 1\n",
            "        agreement.require(self.terms, Lists.SURVIVORS, self._survivors)\n",
        ),
        tests=["test_secure_sum.py::test_nothing_is_opened_twice_and_no_step_is_taken_twice_or_out_of_order"],
    ),
    mutation(
        "a second list of survivors signed",
        (
            SUM_SITE,
            "        self._step += 1\n        self._alive, self._survivors",
            "        self._alive, self._survivors",
        ),
        tests=["test_secure_sum.py::test_a_coordinator_with_half_of_the_sites_gets_no_two_lists_of_survivors_signed"],
    ),
    mutation(
        "masked without enough others who saw the same members",
        (SUM_SITE, "        agreement.require(self.terms, Lists.MEMBERS, self._members)\n", ""),
        tests=["test_secure_sum.py::test_a_site_masks_nothing_for_members_whom_too_few_others_saw"],
    ),
    mutation(
        "keys of a secure sum taken from whoever signs them",
        (SUM_SITE, "            offer.require(self.terms)\n", "            del offer\n"),
        tests=["test_secure_sum.py::test_keys_of_the_coordinator_s_own_are_refused"],
    ),
    mutation(
        "a secure sum priced as if nobody who looks were a site",
        (
            "shared/mechanisms/secure_sum/price.py",
            "max(len(first.members) - first.drop_outs - colluders, 1)",
            "max(len(first.members) - first.drop_outs, 1)",
        ),
        tests=["test_secure_sum.py::test_the_four_rows_are_what_they_are_by_hand"],
    ),
    mutation(
        "half the noise, in the level of events beside a secure sum",
        (SUM_INFLUENCES, "lattice_gaussian_steps(sigma, 2, _GRID)", "lattice_gaussian_steps(sigma / 2, 2, _GRID)"),
        tests=[
            "test_secure_sum_answers.py::test_a_noisy_level_has_noise_of_the_scale_that_is_charged_and_a_record_moves_it_by_no_more"
        ],
    ),
    mutation(
        "charges of a record beyond one event",
        (SUM_INFLUENCES, "np.clip(expected, 0.0, 1.0)", "np.maximum(expected, 0.0)"),
        tests=[
            "test_secure_sum_answers.py::test_a_noisy_level_has_noise_of_the_scale_that_is_charged_and_a_record_moves_it_by_no_more"
        ],
    ),
    mutation(
        "a site's rows as long as a coordinator's weight and cut make them",
        (
            SUM_INFLUENCES,
            "cut = min(most, self.bounds.reach / weight) if weight > 0 else 0.0",
            "cut = most",
        ),
        tests=[
            "test_secure_sum_answers.py::test_rows_stay_within_the_plan_s_bounds_whatever_weight_and_cut_and_place_are_sent"
        ],
    ),
    mutation(
        "squares in a secure sum bent too far to be free",
        (SUM_INFLUENCES, "return math.sqrt(2) / self.most", "return 2 / self.most"),
        tests=[
            "test_secure_sum_answers.py::test_no_two_rows_are_further_apart_than_the_bounds_say_and_some_are_that_far"
        ],
    ),
    mutation(
        "a site's vectors as long as a coordinator's whitening makes them",
        (SUM_VECTORS, "    u = held(vectors.T, reach).T\n", "    u = vectors\n"),
        tests=[
            "test_secure_sum_vectors.py::test_rows_stay_within_the_plan_s_bound_whatever_weights_whitening_and_place_are_sent"
        ],
    ),
    mutation(
        "products in a secure sum of several coefficients too long to be free",
        (
            SUM_VECTORS,
            "np.where(i == j, 1.0, math.sqrt(2)) / (math.sqrt(2) * reach)",
            "np.where(i == j, 1.0, 2.0) / reach",
        ),
        tests=[
            "test_secure_sum_vectors.py::test_vectors_at_their_farthest_are_at_the_bound_and_longer_products_would_be_beyond_it"
        ],
    ),
    mutation(
        "the reach of a sum of several coefficients taken for its sensitivity",
        (SUM_PLAN, "            sensitivity=2 * self.reach,\n", "            sensitivity=self.reach,\n"),
        tests=[
            "test_secure_sum_vectors.py::test_a_plan_s_sum_is_charged_for_that_bound_and_costs_what_one_coefficient_costs"
        ],
    ),
    mutation(
        "an opened sum read whose sites' vectors were whitened differently",
        ("shared/mechanisms/secure_sum/sent_look.py", "return self.start, self.whitening", "return (self.start,)"),
        tests=["test_secure_sum_vectors.py::test_looks_that_no_one_answer_can_be_read_from_are_refused"],
    ),
    mutation(
        "half the noise, in the level that a site tells before a secure sum",
        (
            "site_agent/training/secure_sum/giving.py",
            "sigma = member.release.level_event(self.plan).sigma",
            "sigma = member.release.level_event(self.plan).sigma / 2",
        ),
        tests=["test_summing_site.py::test_the_level_that_a_site_tells_has_the_noise_that_its_plan_is_charged_for"],
    ),
    mutation(
        "a site's part in a secure sum given without consent",
        (HOLDS, "if agreed < hold.approvals_needed:", "if agreed < 0:"),
        tests=["test_secure_sum_ledger.py::test_the_second_needs_a_person_s_consent_to_the_very_question"],
    ),
    mutation(
        "a step of a secure sum begun where the one before it was given up",
        (HOLDS, "if hold.follow and number > 1 and not", "if hold.follow and number > 9 and not"),
        tests=["test_secure_sum_ledger.py::test_each_follows_the_answer_to_the_one_before_it"],
    ),
    mutation(
        "a secure sum served on with too few sites",
        (
            "coordinator/training/secure_sum/walk.py",
            "if len(here) < self._terms.threshold:",
            "if not here:",
        ),
        tests=["test_summing.py::test_below_the_threshold_nothing_is_opened_and_it_is_said[1]"],
    ),
    mutation(
        "a secure sum kept over another opening",
        (
            "coordinator/store/waves.py",
            'if known is not None and known.sha256 != leaf["sha256"]:',
            "if known is not None and not known:",
        ),
        tests=[
            "test_summing_site.py::"
            "test_what_comes_after_the_next_step_was_asked_is_too_late_and_another_opening_is_refused"
        ],
    ),
    mutation(
        "records of persons who withdrew since the pilot summed",
        ("site_agent/training/secure_sum/member.py", "if person not in withdrawn]", "if person is not None]"),
        tests=[
            "test_summing_site.py::"
            "test_whoever_has_withdrawn_since_the_pilot_adds_nothing_and_the_number_of_records_stays"
        ],
    ),
    mutation(
        "a step of a secure sum answered to whatever is asked under its number",
        ("site_agent/training/secure_sum/giving.py", "known.asked != said.digest:", "not known.asked:"),
        tests=["test_summing_hostile.py::test_a_step_is_not_asked_again_with_other_contents"],
    ),
    mutation(
        "half the noise, in the sum that a plan asks for",
        (SUM_PLAN, "sigma=_ROUNDED * 2 * self.reach / mu", "sigma=_ROUNDED * self.reach / mu"),
        tests=["test_secure_sum_plan.py::test_everything_is_charged_at_once_and_is_the_plan_s_epsilon"],
    ),
    mutation(
        "half the noise, in the level that a plan asks for",
        (SUM_PLAN, "Gaussian(sigma=math.sqrt(2) / mu", "Gaussian(sigma=math.sqrt(2) / (2 * mu)"),
        tests=["test_secure_sum_plan.py::test_everything_is_charged_at_once_and_is_the_plan_s_epsilon"],
    ),
    mutation(
        "a secure sum beyond a site's own cap on whoever sees most",
        ("site_agent/release/pipeline/before_charge.py", "    site.budget.require_worst(plan)\n", ""),
        tests=[
            "test_secure_sum_plan.py::test_a_release_beyond_the_site_s_cap_is_refused_before_anything_is_charged_or_read"
        ],
    ),
    mutation(
        "an opened sum that too few of its sites signed",
        (
            "shared/mechanisms/secure_sum/opened.py",
            "signed.require(terms, Lists.SURVIVORS, digest)",
            "signed.verify(terms, Lists.SURVIVORS, digest)",
        ),
        tests=[
            "test_opened_sum.py::test_fewer_survivors_than_the_threshold_and_survivors_who_did_not_sign_are_refused"
        ],
    ),
    mutation(
        "an interval of a secure sum without the sum's noise",
        ("coordinator/pooling/secure_sum/summed.py", "+ cut + noise\n", "+ cut\n"),
        tests=["test_secure_sum_answers.py::test_the_noise_and_the_cut_are_in_the_interval"],
    ),
    mutation(
        "a network without an edge refused",
        (
            "site_agent/records/contacts.py",
            "    del keys\n",
            '    del keys\n    if not len(once):\n        raise DataFileRefusal("no edge", given="none")\n',
        ),
        tests=["test_whole_path.py::test_the_only_edge_of_a_network_decides_nothing_that_leaves_beside_its_counts"],
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What became of one mutation."""

    name: str
    killed: bool
    by: tuple[str, ...]
    seconds: float


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree that may be broken."""
    with owned_folder("tributary-mutations") as copy:
        for part in COPIED:
            source, target = ROOT / part, copy / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            elif source.exists():
                shutil.copy(source, target)
        yield copy


def _pytest(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in a tree; compiled files are not written, or an edit within the same second could go unseen."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "TRIBUTARY_SOAK": ""}
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-m",
        "not soak",
        *tests,
    ]
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return -1, "the tests did not end"
    return done.returncode, done.stdout + done.stderr


def run(root: Path, one: Mutation) -> Outcome:
    """Break the tree at `root`, run the tests, and mend it."""
    began = time.monotonic()
    whole = {edit.path: (root / edit.path).read_text() for edit in one.edits}
    try:
        for edit in one.edits:
            (root / edit.path).write_text(edit.applied(root))
        code, said = _pytest(root, one.tests)
    finally:
        for path, text in whole.items():
            (root / path).write_text(text)
    by = tuple(re.findall(r"^FAILED tests/(?:\w+/)*(\S+)", said, flags=re.MULTILINE))
    return Outcome(one.name, code == FAILED and bool(by), by or (said.strip()[-200:],), time.monotonic() - began)


def run_all(chosen: Sequence[Mutation] = MUTATIONS) -> list[Outcome]:
    """All outcomes. Raises: AssertionError, if a named test fails on the untouched copy."""
    with copied() as root:
        code, said = _pytest(root, sorted({test for one in chosen for test in one.tests}))
        assert code == PASSED, f"the tests must pass before anything is broken:\n{said[-3000:]}"
        outcomes = []
        for one in chosen:
            outcomes.append(run(root, one))
            last = outcomes[-1]
            print(
                f"{'killed' if last.killed else 'SURVIVED':9s} {last.seconds:5.0f} s  {last.name:55s} {last.by[0]}",
                flush=True,
            )
        return outcomes


def main() -> int:
    """Run all mutations, those that no run has seen noticed, or those whose names contain the first argument."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    rows: dict[str, Any] = {}
    if word == "--new":
        rows = json.loads((ROOT / "tests/benchmarks/results/mutations.json").read_text())["results"]["by"]
        rows = {one.name: rows[one.name] for one in MUTATIONS if rows.get(one.name, {}).get("killed")}
    chosen = [one for one in MUTATIONS if one.name not in rows and (word == "--new" or word in one.name)]
    if not chosen:
        print(f"no mutation has {word!r} in its name, or none is new")
        return 2
    outcomes = run_all(chosen)
    killed = sum(outcome.killed for outcome in outcomes)
    print(f"{killed} of {len(outcomes)} killed")
    if word in ("", "--new"):
        rows |= {o.name: {"killed": o.killed, "by": list(o.by), "seconds": round(o.seconds, 1)} for o in outcomes}
        results = {"mutations": len(rows), "killed": sum(row["killed"] for row in rows.values()), "by": rows}
        print(record.write("mutations", results, seed=0))
    return 0 if killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
