"""A flow that the sites train together: ``federate run``, ``federate status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import DryRun, Json, Study, federate_app, show_facts, verb
from coordinator.config import CoordinatorConfig
from shared.errors import PlanRefusal
from shared.privacy.stated import shown_price
from shared.terminal import VerbAnswer, console

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.store.store import Store


__all__ = ["federate_run", "federate_status"]


@verb(federate_app, "run")
def federate_run(
    config: CoordinatorConfig,
    store: Store,
    study: Study,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="MINUTES", min=0.01, help="How long a round waits for its last site.")
    ] = 60.0,
    dry_run: DryRun = False,
    json: Json = False,
) -> VerbAnswer:
    """Train the plan's flow with the sites that dial in; stopped, it goes on where it was. Beside coordinator serve."""
    from coordinator.services.authority import Authority
    from coordinator.training.dialled import nodes, train

    plan = store.plan(study).plan
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
    """How far the study's newest training is: which round, who has answered it, who is waited for."""
    from coordinator.services.collect.round_queue import RoundQueue

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
        show_facts(
            out,
            ("answered", ", ".join(answer["answered"]) or "nobody yet"),
            ("gave none", ", ".join(f"{site} ({code})" for site, code in answer["without"].items()) or "nobody"),
            ("waited for", ", ".join(answer["waiting"]) or "nobody"),
        )

    return VerbAnswer(answer, show)
