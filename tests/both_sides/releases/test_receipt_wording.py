"""What a receipt says, word by word: people approve releases because of these sentences.

After a wording was changed on purpose: `python -m tests.both_sides.releases.test_receipt_wording` writes the file
anew; read the diff.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stage.plans.worded import study

from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.plan import StudyPlan, Training
from shared.privacy.stated import shown_epsilon
from shared.releases.receipt import Receipt, ReceiptDraft, coverage, write_receipt

STUDIES = Path(__file__).parents[3] / "deploy" / "studies"
SNAPSHOT = Path(__file__).with_name("receipt_wording.json")
WORDS = ("unit", "neighbours", "model", "conditional_on", "translation", "covered", "not_covered")


PLANS = {
    **{posture: study(posture) for posture in ("local", "holdout", "public", "private")},
    "local, rows without persons": study("local", person=False),
    "public, rows without persons": study("public", person=False),
    "private, rows without persons": study("private", person=False),
    "local, complete cases": study("local", complete_case=True),
    "local, large epsilon": replace(study("local"), release=LatentNoisePlan(w=0.8)),
    "local, the event carried over": replace(study("local"), release=LatentNoisePlan(epsilon=6.0, carry="died")),
    "local, begun at a shared flow": replace(
        study("local"), flow="federated:" + "a" * 64, training=Training(transfer=True)
    ),
    **{
        f"local, noise that depends on records: {vary}": replace(
            study("local"), release=LatentNoisePlan(w=0.8, vary=vary)
        )
        for vary in ("weight", "rotation", "matched")
    },
    "local, w = 0": replace(study("local"), release=LatentNoisePlan(w=0.0)),
    "public, w = 0": replace(study("public"), release=LatentNoisePlan(w=0.0)),
    "local, unusual records pulled in": replace(study("local"), release=LatentNoisePlan(w=0.8, shrink=2.0)),
}
PLANS["a secure sum"] = StudyPlan.from_toml((STUDIES / "secure-sum.toml").read_text(encoding="utf-8"))


THROUGH_AN_EARLIER_FLOW = "private, through the flow of an earlier release"
PLANS[THROUGH_AN_EARLIER_FLOW] = replace(study("private"), title="Words again")


def receipt(plan: StudyPlan) -> Receipt:
    reused = plan is PLANS[THROUGH_AN_EARLIER_FLOW]
    return write_receipt(
        plan,
        ReceiptDraft(
            reused=reused,
            flow_of="cd" * 16 if reused else "",
            wave=1,
            site="north",
            release_id="ab" * 16,
            agent_version="0.1.0",
            n=400,
            previous="0" * 64,
        ),
    )


def words(plan: StudyPlan) -> dict[str, object]:
    said = json.loads(receipt(plan).to_bytes())
    return {name: said[name] for name in WORDS}


@pytest.mark.parametrize("name", PLANS)
def test_a_receipt_says_exactly_these_words(name):
    assert words(PLANS[name]) == json.loads(SNAPSHOT.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", PLANS)
def test_a_receipt_with_these_words_is_true_and_reads_back(name):
    made = receipt(PLANS[name])
    made.require_true(PLANS[name])
    assert Receipt.from_bytes(made.to_bytes()) == made


@pytest.mark.parametrize("posture", ["local", "holdout", "public", "private"])
def test_where_incomplete_rows_are_left_out_the_promise_is_of_another_complete_record(posture):
    for complete_case in (True, False):
        figures = replace(study("private", complete_case=complete_case), private=None, release=TablesPlan(epsilon=1.0))
        for plan in (study(posture, complete_case=complete_case), figures):
            said = coverage(plan)[0][0]
            assert ("by any other complete record changes" in said) == complete_case
            assert ("by any other changes" in said) != complete_case


def test_no_sentence_calls_a_row_a_patient_where_nobody_knows_whose_it_is():
    for name in ("public, rows without persons", "private, rows without persons"):
        said = words(PLANS[name])
        assert said["unit"] == "row"
        assert "patients could" not in said["translation"]
        assert "person" not in " ".join(said["covered"])


def test_a_receipt_that_makes_who_looks_together_cheaper_is_refused():
    from shared.errors import ReceiptRefusal

    plan = PLANS["a secure sum"]
    made = receipt(plan)
    [said] = made.covered
    worst = shown_epsilon(max(plan.release.seen_by(plan).values()))
    assert f"all 11 others: ε = {worst}" in said
    with pytest.raises(ReceiptRefusal, match="covered"):
        replace(made, covered=(said.replace(worst, "1.5"),)).require_true(plan)


def test_a_receipt_of_rows_does_not_pass_for_one_of_patients():
    from shared.errors import ReceiptRefusal

    plan = PLANS["public, rows without persons"]
    with pytest.raises(ReceiptRefusal, match="unit"):
        replace(receipt(plan), unit="patient").require_true(plan)


if __name__ == "__main__":
    SNAPSHOT.write_text(
        json.dumps({name: words(plan) for name, plan in PLANS.items()}, indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
