"""Joint computation by the sites, the training of a flow or a secure sum: ``federate run``, ``federate status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import DryRun, Json, Study, federate_app, show_facts, verb
from coordinator.config import CoordinatorConfig
from shared.errors import PlanRefusal
from shared.privacy.stated import shown_price
from shared.terminal import VerbAnswer, console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from coordinator.store.store import Store
    from coordinator.training.secure_sum.walk import StepProgress
    from shared.plans.plan import StudyPlan

__all__ = ["federate_run", "federate_status"]


@verb(federate_app, "run")
def federate_run(
    config: CoordinatorConfig,
    store: Store,
    study: Study,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="MINUTES", min=0.01, help="How long a round waits for its last site.")
    ] = 60.0,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="SITE", help="Of a sum: a site that has no pilot; repeat.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> VerbAnswer:
    """Train the plan's flow, or take its secure sum, with the sites that dial in. Stopped, it goes on where it was."""
    from coordinator.services.authority import Authority
    from coordinator.training.dialled import nodes, train

    plan = store.plan(study).plan
    if plan.release.follow:
        return _summed(config, store, plan, timeout, list(without or ()), dry_run, json)
    if plan.federated is None:
        raise PlanRefusal(
            "the study's newest plan must have [federated] for its sites to train together",
            given=f"version {plan.version} without it",
            next_step="See docs/operators-manual.md, A flow trained by all sites.",
        )
    sites = nodes(store, study)
    answer: dict[str, Any] = {
        "study": study,
        "plan_hash": plan.hash,
        "sites": sorted(sites),
        "quorum": plan.federated.quorum,
        "rounds": plan.federated.rounds,
        "epsilon": plan.federated.epsilon(plan.budget.delta),
        "delta": plan.budget.delta,
        "flow": None,
        "dry_run": dry_run,
    }
    if not dry_run:

        def report(number: int, progress: Any) -> None:
            if not json:
                here = [site for site, one in progress.items() if number in one.answered]
                without = sorted(set(progress) - set(here))
                words = f"round {number} of {answer['rounds']}: {len(here)} of {len(progress)} sites"
                console(stderr=True).print(words + (f", without {', '.join(without)}" if without else ""))

        key = Authority.load(config.home).witness
        flow = train(home=config.home, store=store, plan=plan, key=key, timeout=60 * timeout, progress=report)
        answer |= {"flow": flow.name, "answered": {site: dict(said) for site, said in flow.sites.items()}}

    def show(out: Console) -> None:
        out.print(f"{study}, plan version {plan.version}: a flow in {answer['rounds']} rounds", style="bold")
        show_facts(
            out,
            ("sites", ", ".join(sites) or "none has joined"),
            ("a round needs", f"{answer['quorum']} of them"),
            ("each patient pays", f"{shown_price(answer['epsilon'], delta=answer['delta'])}, once, before round 1"),
        )
        if answer["flow"] is None:
            out.print("dry run: nothing was asked")
            return
        counted = ", ".join(f"{site} {said['n']:,}" for site, said in answer["answered"].items())
        show_facts(out, ("records, as each site says", counted))
        out.print(f"The flow is trained, and up for the sites: {answer['flow']}", soft_wrap=True)
        words = 'next: a plan version with posture = "private" and this flow, then coordinator plan sign'
        out.print(words, style="cyan")

    return VerbAnswer(answer, show)


@verb(federate_app, "status")
def federate_status(store: Store, study: Study) -> VerbAnswer:
    """How far the study's newest training or sum is: which round, who has answered it, who is waited for."""
    from coordinator.services.collect.round_queue import RoundQueue

    newest = store.plan(study).plan
    if newest.release.follow:
        return _sum_status(store, newest)
    found = RoundQueue(store).progress(study)
    plans = {stored.plan.hash: stored.plan for stored in store.plans()}
    plan = None if found is None else plans.get(found.plan_hash)
    rounds = plan.federated.rounds if plan is not None and plan.federated is not None else None
    answer: dict[str, Any] = {
        "study": study,
        "plan_hash": found.plan_hash if found else None,
        "rounds": rounds,
        "round": found.round if found else 0,
        "answered": sorted(site for site, code in found.answered.items() if not code) if found else [],
        "without": {site: code for site, code in found.answered.items() if code} if found else {},
        "waiting": list(found.waiting) if found else [],
        "flow": f"federated:{found.finished}" if found and found.finished else None,
    }

    def show(out: Console) -> None:
        if found is None:
            out.print(f"{study} has begun no training.")
            return
        if answer["flow"]:
            out.print(f"{study}: trained in {found.round} rounds", style="bold")
            out.print(str(answer["flow"]), soft_wrap=True)
            return
        out.print(f"{study}: round {found.round} of {rounds}", style="bold")
        _show_who(out, answer)

    return VerbAnswer(answer, show)


def _show_who(out: Console, answer: Mapping[str, Any]) -> None:
    """Print the sites that have answered a round or step, those that gave nothing, and those still waited for."""
    show_facts(
        out,
        ("answered", ", ".join(answer["answered"]) or "nobody yet"),
        ("gave none", ", ".join(f"{site} ({code})" for site, code in answer["without"].items()) or "nobody"),
        ("waited for", ", ".join(answer["waiting"]) or "nobody"),
    )


def _summed(
    config: CoordinatorConfig,
    store: Store,
    plan: StudyPlan,
    timeout: float,
    left_out: list[str],
    dry_run: bool,
    quiet: bool,
) -> VerbAnswer:
    """Take the sum of a plan, and say what was opened."""
    from coordinator.services.authority import Authority
    from coordinator.training.secure_sum.walk import ready, run_sum, sum_plan

    release = sum_plan(plan)
    pilots, without = ready(store, plan)
    names, terms = tuple(release.members), release.terms(plan)
    answer: dict[str, Any] = {
        "study": plan.study,
        "plan_hash": plan.hash,
        "sites": [names[place] for place in sorted(pilots)],
        "without": without,
        "threshold": terms.threshold,
        "sigma": terms.sigma,
        "seen_by": dict(release.seen_by(plan)),
        "delta": plan.budget.delta,
        "opened": None,
        "dry_run": dry_run,
    }
    if not dry_run:

        def report(now: StepProgress) -> None:
            if not quiet:
                lost = ", ".join(f"{site} ({code})" for site, code in now.lost.items())
                words = f"step {now.step.value} of {release.follow}, {now.step.title}: "
                words += f"{len(now.answered)} of {len(now.asked)} sites"
                console(stderr=True).print(words + (f", without {lost}" if lost else ""))

        key = Authority.load(config.home).witness
        opened = run_sum(store, plan, key, timeout=60 * timeout, without=left_out, progress=report)
        answer |= {
            "opened": opened.sha256,
            "survivors": [names[place] for place in opened.parts],
            "total": list(opened.total),
            "sigma": opened.sigma,
        }

    def show(out: Console) -> None:
        out.print(f"{plan.study}, plan version {plan.version}: one sum of {len(names)} sites", style="bold")
        lacking = [("not here", "; ".join(f"{site} {why}" for site, why in without.items()))] if without else []
        show_facts(
            out,
            ("pilots", ", ".join(answer["sites"]) or "none"),
            *lacking,
            ("must stay to the end", f"{terms.threshold} sites"),
            *(
                (f"towards {who}", shown_price(epsilon, delta=plan.budget.delta))
                for who, epsilon in answer["seen_by"].items()
            ),
        )
        if answer["opened"] is None:
            out.print("dry run: nothing was asked")
            return
        show_facts(
            out,
            ("in the sum", ", ".join(answer["survivors"])),
            *(
                [("not in it", ", ".join(lost))]
                if (lost := sorted({*answer["sites"]} - {*answer["survivors"]}))
                else []
            ),
            ("noise", f"standard deviation {answer['sigma']:.4g} on each number"),
        )
        out.print(f"Opened once, and kept: {answer['opened']}", soft_wrap=True)
        out.print(f"next: coordinator pool {plan.study} --estimand NAME", style="cyan")

    return VerbAnswer(answer, show)


def _sum_status(store: Store, plan: StudyPlan) -> VerbAnswer:
    """Progress of a plan's secure sum: its step, and the sites that have answered it."""
    from coordinator.services.collect.sum_queue import progress_of
    from shared.mechanisms.secure_sum.steps import SumStep

    found = progress_of(store, plan)
    title = SumStep(found.step).title if found.step else ""
    answer: dict[str, Any] = {
        "study": plan.study,
        "plan_hash": plan.hash,
        "steps": plan.release.follow,
        "step": found.step,
        "title": title,
        "answered": sorted(site for site, code in found.answered.items() if not code),
        "without": {site: code for site, code in found.answered.items() if code},
        "waiting": list(found.waiting),
        "opened": found.opened or None,
    }

    def show(out: Console) -> None:
        if not found.step:
            out.print(f"{plan.study} has begun no sum.")
            return
        if found.opened:
            out.print(f"{plan.study}: the sum is opened", style="bold")
            out.print(found.opened, soft_wrap=True)
            return
        out.print(f"{plan.study}: step {found.step} of {plan.release.follow}, {title}", style="bold")
        _show_who(out, answer)

    return VerbAnswer(answer, show)
