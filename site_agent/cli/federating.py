"""Joint computations of the sites: ``federate``, in a training or a secure sum, and ``consent`` to a secure sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import LockedRefusal
from shared.privacy.stated import shown_price
from shared.terminal import VerbAnswer, plain
from site_agent.cli.frame import As, Dry, Json, Study, app, screen, verb
from site_agent.desk import agent_now, today, working_site

if TYPE_CHECKING:
    from rich.console import Console

    from shared.mechanisms.secure_sum.steps import SumStep
    from shared.plans.plan import StudyPlan
    from shared.terminal import Part
    from site_agent.desk import Desk
    from site_agent.egress import Egress
    from site_agent.training.rounds import Participant
    from site_agent.training.secure_sum.consent import ConsentPage

__all__ = ["consent", "federate"]

BETWEEN = 60.0
"""Seconds that a consent waits for another process of this site to be between two of its looks."""
_STAYS = (
    "Waiting up to {:g} minutes for each step that the coordinator asks. Keep this running until the sum is opened: "
    "once this site's keys are given, its secrets are in this process alone."
)
_NOT_ASKED = (
    "The coordinator asks this site for nothing now: the sum has not begun, or waits for other sites. The study lead "
    "sees which (coordinator federate status)."
)
_LOST = (
    "Stopped after this site's keys were given. Their secrets went with this process, so that this site gives nothing "
    "more to this sum. {} So that the others need not wait, site-agent federate {} once more says it to the "
    "coordinator."
)
_GOES_ON = "Stopped. What was given is kept, and nothing is lost: site-agent federate {} --wait 60 goes on."


@verb(app, noted="federate")
def federate(
    desk: Desk,
    study: Study,
    wait: Annotated[
        float, typer.Option("--wait", metavar="MINUTES", min=0.0, help="How long to wait for the next round.")
    ] = 0.0,
    json: Json = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Take part in the training, or the secure sum, that the approved plan asks for. All of it is charged before."""
    from dataclasses import asdict

    from site_agent.show import screens
    from site_agent.training import rounds
    from site_agent.training.part import part

    plan, approval = desk.plans.approved(study, agent_now())
    if plan.release.follow:
        return _given(desk, plan, wait, json, dry_run)
    done: list[tuple[str, int]] = []
    stopped = f"{_GOES_ON.format(study)} A round that was begun and not answered is given up; its charge stays."
    fetched = False
    if plan.flow:
        if not dry_run:
            with desk.locked(), desk.egress() as egress:
                fetched = rounds.fetch(plan, egress, desk.home)
        facts: dict[str, Any] = {"study": study, "flow": plan.flow, "fetched": fetched, "dry_run": dry_run}

        def show_flow(out: Console) -> None:
            screens.heading(out, study, "the flow of its plan was trained before")
            out.print(f"{plan.flow[:26]}… {'was fetched' if fetched else 'is here' if not dry_run else 'is named'}.")

        return VerbAnswer(facts, show_flow)
    part(desk.ledger, plan)
    desk.require_running()
    desk.config.source(study)  # which must be there, also for a dry run
    if not dry_run:
        with _heard_on_stop(lambda: stopped), desk.egress() as egress:
            rounds.take_part(
                _participant(desk, plan, egress),
                home=desk.home,
                wait=60 * wait,
                progress=lambda what, round_: done.append((what, round_)),
            )
    own = part(desk.ledger, plan, approval.approver)
    answer = {**plain(asdict(own)), "done": done, "dry_run": dry_run}

    detail = "dry run: nothing asked, charged or sent" if dry_run else own.state
    return VerbAnswer(
        answer,
        screen.heading(f"{study}: a flow trained by all sites", detail),
        screen.settings(
            [
                ("price", f"{shown_price(own.epsilon, delta=own.delta)}, for everybody in the table, once"),
                ("approved by", own.approver),
                ("charged", own.day or "not yet"),
                ("answered", f"{len(own.answered)} of {own.rounds} rounds"),
                *([("given up", ", ".join(map(str, own.given_up)))] if own.given_up else []),
                *([("flow", own.flow)] if own.flow else []),
            ]
        ),
        screen.next_step("site-agent budget" if own.flow else f"site-agent federate {study} --wait 60"),
    )


def _given(desk: Desk, plan: StudyPlan, wait: float, quiet: bool, dry_run: bool) -> VerbAnswer:
    """Take part in the plan's sum, and say how far it is."""
    from dataclasses import asdict

    from shared.terminal import console
    from site_agent.training.secure_sum.giving import give
    from site_agent.training.secure_sum.member import member_of, part_in_sum

    done: list[tuple[str, str]] = []

    def progress(what: str, step: SumStep) -> None:
        if (what, step.title) not in done:
            done.append((what, step.title))
            if not quiet:
                asks = f" ({_consenting(plan.study)})" if what == "waits for consent" else ""
                line = f"step {step.value} of {plan.release.follow}, {step.title}: {what}{asks}"
                console(stderr=True).print(line, soft_wrap=True)

    desk.require_running()
    if wait and not (quiet or dry_run):
        console(stderr=True).print(_STAYS.format(wait))
    if not dry_run:
        member_of(desk.ledger, desk.config.site, plan)
        with _heard_on_stop(lambda: _stopped_sum(desk, plan)), desk.egress() as egress:
            give(
                _participant(desk, plan, egress),
                wait=60 * wait,
                progress=progress,
            )
    own = part_in_sum(desk.ledger, plan)
    detail = "dry run: nothing asked or given" if dry_run else own.state
    step = _consenting(plan.study) if own.waits else f"site-agent federate {plan.study} --wait 60"
    return VerbAnswer(
        {**plain(asdict(own)), "done": done, "dry_run": dry_run},
        screen.heading(f"{plan.study}: a sum of all sites", detail),
        screen.settings(
            [
                ("price", f"{shown_price(own.epsilon, delta=own.delta)}, charged with the pilot, once"),
                ("given", ", ".join(own.answered) or "nothing yet"),
                *([("given up", ", ".join(own.given_up))] if own.given_up else []),
                ("consent", f"{len(own.consents)} of {own.needed}: {', '.join(own.consents) or 'nobody yet'}"),
            ]
        ),
        *([_NOT_ASKED] if not (done or own.finished or dry_run) else []),
        screen.next_step("site-agent budget" if own.finished else step),
    )


def _participant(desk: Desk, plan: StudyPlan, egress: Egress) -> Participant:
    from site_agent.training.rounds import Participant

    source, site = desk.config.source(plan.study), working_site(desk, egress)
    return Participant(plan=plan, source=source, site=site, door=egress, today=today(), locked=desk.locked)


def _consenting(study: str) -> str:
    """The command by which an approver reads what a sum asks; it names the one that agrees to it."""
    return f"site-agent consent {study} --as NAME --dry-run"


@contextmanager
def _heard_on_stop(words: Callable[[], str]) -> Iterator[None]:
    """Say after Ctrl-C where this site's part stands and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(words(), err=True)
        raise


def _stopped_sum(desk: Desk, plan: StudyPlan) -> str:
    from shared.mechanisms.secure_sum.steps import SumStep
    from site_agent.training.secure_sum.member import member_of, what_it_costs

    hold = member_of(desk.ledger, desk.config.site, plan).hold
    if SumStep.OPEN in hold.begun:
        return "Stopped. This site had given all its part."
    offered = SumStep.OFFER in hold.begun or any(not one.answer for one in hold.begun.values())
    return _LOST.format(what_it_costs(hold), plan.study) if offered else _GOES_ON.format(plan.study)


@contextmanager
def _locked(desk: Desk) -> Iterator[None]:
    """The folder's lock, once the process that waits for this consent has looked: it settles what a crash left."""
    until = time.monotonic() + BETWEEN
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(desk.locked())
                break
            except LockedRefusal:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.1)
        yield


@verb(app, noted="consent")
def consent(
    desk: Desk,
    study: Study,
    name: As,
    compared: Annotated[
        list[str] | None,
        typer.Option("--compared", metavar="SITE", help="A hospital with which you compared its key; repeat."),
    ] = None,
    json: Json = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Agree that this site gives its part in the secure sum, as the coordinator asks for it; --dry-run shows it."""
    from shared.base.keys import PublicKey
    from shared.terminal import console
    from site_agent.decide.airlock import signing
    from site_agent.training.secure_sum import consent as consenting

    desk.config.approver_key(name)
    plan, _ = desk.plans.approved(study, agent_now())
    page = consenting.waiting_order(desk.ledger, desk.config.site, plan, compared or ())
    hold = page.member.hold
    keys = {site: PublicKey(key).fingerprint for site, key in plan.release.keys.items()}
    marks = {desk.config.site: "this site's", **dict.fromkeys(page.compared, "compared")}
    shown = _before_consent(page, [(site, mark, marks.get(site, "no")) for site, mark in keys.items()])
    if not dry_run:
        desk.require_running()
        if not json:  # before the key is opened: whoever reads it may still stop
            VerbAnswer({}, screen.heading(f"{study}: this site's part in the sum"), *shown).show(console(stderr=True))
        beside = hold.consents if hold.consent == page.asked else ()
        key = signing.Approver.at(desk, name, beside=beside).key(desk)
        with _locked(desk):
            hold = consenting.give_consent(desk.ledger, page, name=name, key=key)
    given = hold.consents if hold.consent == page.asked else ()
    answer: dict[str, Any] = {
        "study": study,
        "release_id": hold.release_id,
        "asked": page.asked,
        "consents": list(given),
        "needed": hold.approvals_needed,
        "sentences": list(page.sentences),
        "keys": keys,
        "compared": list(page.compared),
        "epsilon_uncompared": page.uncompared,
        "advice": page.advice,
        "sigma": page.member.terms.sigma,
        "dry_run": dry_run,
    }
    detail = "dry run, not signed" if dry_run else f"consented to by {', '.join(given)}"
    agreeing = " ".join([f"site-agent consent {study} --as {name}", *(f"--compared {one}" for one in page.compared)])
    return VerbAnswer(
        answer,
        screen.heading(f"{study}: this site's part in the sum", detail),
        *(shown if dry_run else ()),
        screen.settings([("consent", f"{len(given)} of {hold.approvals_needed}")]),
        screen.next_step(agreeing if dry_run else f"site-agent federate {study} --wait 60"),
    )


def _before_consent(page: ConsentPage, members: Sequence[tuple[str, str, str]]) -> tuple[Part, ...]:
    """What an approver reads before the signature.

    Args:
        members: each with the fingerprint of its key, and whether it was compared.
    """
    from shared.terminal import table

    return (
        *page.sentences,
        *([page.advice] if page.advice else []),
        lambda out: out.print(table(("member", "fingerprint of its key", "compared"), members)),
        screen.settings([("noise", f"standard deviation {page.member.terms.sigma:.4g} on each number of the sum")]),
    )
