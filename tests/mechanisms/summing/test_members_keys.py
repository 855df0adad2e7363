"""Keys of a secure sum's members: a site checks its own, persons compare the others, which one party could hold."""

# ruff: noqa: F811  (fixtures are imported by their names)
from __future__ import annotations

import pytest
from stage.hospital_side.site_desk import hospital  # noqa: F401
from stage.mechanisms.summed import NAMES, stage  # noqa: F401
from stage.mechanisms.sums import hearts
from stage.plans.plan_text import TOML

from shared.base.canonical import parse_json, sha256_hex
from shared.base.keys import PublicKey, SigningKey
from shared.errors import PlanRefusal, StateRefusal, UsageRefusal
from shared.plans.plan import StudyPlan
from shared.privacy.stated import shown_epsilon
from site_agent.training.secure_sum.consent import give_consent, waiting_order


def test_keys_that_one_party_made_pass_for_hospitals_and_a_steward_sees_each_to_compare_it(hospital):
    hospital.joined()
    own = SigningKey.load(hospital.home / "keys" / "release.pem").public
    made = {f"hospital-{k}": SigningKey.generate().public for k in range(5)}
    keys = {"north": own, **made}
    text = hearts({site: key.hex for site, key in keys.items()}, epsilon=1.0, budget=1.2)
    plan = StudyPlan.from_toml(text.replace('study = "hearts"', 'study = "mini"'))
    plan.release.require_site("north", own.hex)  # nothing in the plan tells whose the other keys are
    hospital.publish(plan)
    hospital("plan", "fetch", "mini")
    page = hospital.json("plan", "show", "mini")["keys"]
    assert {one["site"]: one["fingerprint"] for one in page["of"]} == {s: key.fingerprint for s, key in keys.items()}
    assert [one["site"] for one in page["of"] if one["own"]] == ["north"]
    shown = hospital("plan", "show", "mini")
    assert all(key.fingerprint in shown for key in keys.values())
    worst = list(plan.release.seen_by(plan).values())[-1]
    said = " ".join(shown.split())
    assert f"what holds would be ε = {shown_epsilon(worst)}, the last of the rows" in said
    assert "by telephone, at a number that neither the coordinator nor the study lead gave you" in said


def test_a_key_that_this_site_has_no_more_is_not_left_to_be_compared_by_telephone(hospital):
    hospital.joined()
    keys = {site: SigningKey.generate().public for site in ("north", *(f"hospital-{k}" for k in range(5)))}
    text = hearts({site: key.hex for site, key in keys.items()}, epsilon=1.0, budget=1.2)
    hospital.publish(StudyPlan.from_toml(text.replace('study = "hearts"', 'study = "mini"')))
    hospital("plan", "fetch", "mini")
    page = hospital.json("plan", "show", "mini")["keys"]
    assert [(one["site"], one["own"]) for one in page["of"] if one["another"] or one["own"]] == [("north", False)]
    shown = hospital("plan", "show", "mini")
    marks = {site: next(line for line in shown.splitlines() if key.fingerprint in line) for site, key in keys.items()}
    assert "this site's name, another key" in marks.pop("north")
    assert all("compare it" in line for line in marks.values())


LINES = "Of nothing.\n\nKeys of the members\n\nmember   fingerprint of its key\neast   deea 9e7b   compared"


def test_no_text_of_the_plan_reads_as_lines_of_the_page_that_a_steward_decides_by(hospital):
    hospital.joined()
    own = SigningKey.load(hospital.home / "keys" / "release.pem").public.hex
    keys = {site: SigningKey.generate().public.hex for site in (f"hospital-{k}" for k in range(5))}
    given = StudyPlan.from_toml(hearts(keys | {"north": own}, epsilon=1.0, budget=1.2)).to_canonical()
    padded = LINES.replace("\n", " " * 300)  # what is wrapped begins a line, too
    given |= {"study": "mini", "title": LINES, "purpose": padded, "eligibility": LINES}
    hospital.publish(StudyPlan.from_canonical(given))
    hospital("plan", "fetch", "mini")
    for full in ((), ("--full",)):
        shown = [line.strip() for line in hospital("plan", "show", "mini", *full).splitlines()]
        assert shown.count("Keys of the members") == 1
        assert not any(line.startswith("east") for line in shown)


def test_no_variant_has_a_level_that_reads_as_lines_of_the_page_that_an_approver_signs():
    members = {f"hospital-{k}": SigningKey.generate().public.hex for k in range(5)}
    plan = StudyPlan.from_toml(hearts(members, epsilon=1.0, budget=1.2)).to_canonical()
    for text in (LINES, LINES.replace("\n", " " * 300)):
        plan["release"]["variants"] = [f'logistic(died, subset = ward == "{text}") ~ sbp/10']
        with pytest.raises(PlanRefusal, match="must each be one line"):
            StudyPlan.from_canonical(plan)


@pytest.mark.parametrize(
    "name", ["a site\neast   deea 9e7b   compared", "HOSPITAL-1", "east ", "е" + "ast", "x" * 65, ""]
)
def test_no_member_has_a_name_that_reads_as_another_hospitals_line(name):
    members = {f"hospital-{k}": SigningKey.generate().public.hex for k in range(5)}
    plan = StudyPlan.from_toml(hearts(members, epsilon=1.0, budget=1.2)).to_canonical()
    plan["release"]["members"] = {**plan["release"]["members"], name: SigningKey.generate().public.hex}
    with pytest.raises(PlanRefusal, match=r"plain words|small and capital"):
        StudyPlan.from_canonical(plan)


def test_a_plan_without_a_sum_rests_on_nobodys_key(hospital):
    hospital.joined().publish(StudyPlan.from_toml(TOML))
    hospital("plan", "fetch", "mini")
    assert hospital.json("plan", "show", "mini")["keys"] is None


def test_a_consent_says_what_holds_if_the_keys_not_compared_are_the_coordinators_and_keeps_which_were(stage):
    north, pages = stage.hospitals["north"], []
    release = stage.plan.release

    def consents() -> None:
        with pytest.raises(UsageRefusal, match="other members of the sum"):
            waiting_order(north.ledger, "north", stage.plan, ["north"])
        for compared in ((), ("east", "mid"), ("east", "mid", "south", "west")):
            pages.append(waiting_order(north.ledger, "north", stage.plan, compared))
        give_consent(north.ledger, pages[1], name="steward", key=north.keys.steward)
        for again in pages:  # another document would lie there, signed by nobody
            with pytest.raises(StateRefusal, match=r"once(.|\n)*What was signed stays"):
                give_consent(north.ledger, again, name="steward", key=north.keys.steward)
        kept = {path.name for path in north.ledger.folder(north.hold).glob("sum-consent*")}
        assert kept == {f"sum-consent-{sha256_hex(pages[1].document)[:16]}.json"}

    north.consent = consents
    stage.whole()
    nobody, two, all_others = pages
    rows = list(release.seen_by(stage.plan).values())
    assert (nobody.uncompared, all_others.uncompared) == (rows[-1], rows[0])
    assert rows[0] < two.uncompared == release.seen_with(stage.plan, 2) <= rows[-1]
    [said] = [line for line in two.sentences if "Not compared" in line]
    assert "Not compared: south, west. If these were the coordinator's own, what holds is" in said
    assert f"ε = {shown_epsilon(two.uncompared)}, though no hospital tells it anything" in said
    assert "--compared SITE" in two.advice
    assert (all_others.advice, any("Not compared" in line for line in all_others.sentences)) == ("", False)
    # What the approver said is theirs alone: in the document that their signature in the ledger names.
    [consented] = [entry for entry in north.ledger.entries() if entry.kind == "sum_consented"]
    digest = consented.body["document_sha256"]
    kept = (north.ledger.folder(north.hold) / f"sum-consent-{digest[:16]}.json").read_bytes()
    assert sha256_hex(kept) == digest
    keys = {name: PublicKey(release.keys[name]).fingerprint for name in ("east", "mid")}
    assert parse_json(kept)["compared"] == keys
    assert "compared" not in parse_json(nobody.document)
    assert set(NAMES) == set(release.keys)
