"""The study plan: ``studies``, ``plan redcap``, ``check``, ``prices``, ``cost``, ``sign``, ``amend`` …"""

from __future__ import annotations

import functools
from base64 import b64encode
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import (
    DryRun,
    Keys,
    PlanFile,
    Study,
    app,
    labelled,
    lead_key,
    lead_keys,
    open_store,
    plan_app,
    require_still_open,
    show_facts,
    show_sentences,
    today,
    verb,
)
from coordinator.config import FILE_NAME, CoordinatorConfig
from shared.errors import ParameterError, PlanRefusal, PlanRollback, Refusal, StateRefusal
from shared.privacy.stated import shown_column, shown_delta, shown_epsilon, shown_price, shown_room
from shared.terminal import VerbAnswer, checklist, one_line, plain, table, tabled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from coordinator.planning.price import PlanCost, Price
    from coordinator.planning.review import KnownStudy
    from coordinator.services.quotas import Deletion
    from coordinator.store.store import Store
    from shared.plans.plan import StudyPlan
    from shared.terminal import ChecklistLine

__all__ = ["plan_amend", "plan_check", "plan_cost", "plan_prices", "plan_redcap", "plan_show", "plan_sign"]
__all__ += ["known_here", "plan_delete", "plan_retire", "plan_text", "recipient", "studies", "write_draft"]


@verb(app, rich_help_panel="Set up")
def studies(store: Store) -> VerbAnswer:
    """List the studies: their version in force, waves, sites, and what has arrived."""
    rows = []
    for plan in {stored.plan.study: stored.plan for stored in store.plans()}.values():  # by version: the last stays
        arrived = store.releases(plan.study)
        facts = {"study": plan.study, "title": plan.title, "version": plan.version, "waves": len(plan.waves)}
        facts |= {"sites": len(store.members(plan.study)), "releases": len(arrived), "expires": plan.expires}
        rows.append({**facts, "newest_wave": max((release.wave for release in arrived), default=None)})

    def show(out: Console) -> None:
        if not rows:
            out.print("No study has been signed yet.")
            out.print("next: coordinator plan new STUDY", style="cyan")
            return
        heads = list(rows[0])
        shown = [heads[-1].replace("_", " ") if head == heads[-1] else head for head in heads]
        numbers = [head for head in shown if head not in ("study", "title", "expires")]
        out.print(table(shown, [list(row.values()) for row in rows], right=numbers))

    return VerbAnswer(rows, show)


@verb(plan_app, "redcap")
def plan_redcap(
    file: PlanFile,
    out: Annotated[Path, typer.Option("--out", help="The CSV file to write.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write a plan's dictionary as a REDCap data dictionary, to be uploaded there."""
    from shared.plans.plan import StudyPlan
    from shared.plans.redcap import to_redcap

    text = to_redcap(StudyPlan.from_toml(plan_text(file)).dictionary)
    if out.exists():
        raise StateRefusal("the file must be new", given=f"{out}", next_step="Choose another --out.")
    if not dry_run:
        out.write_text(text, encoding="utf-8", newline="")
    return VerbAnswer({"file": str(out), "written": not dry_run}, f"{'would write' if dry_run else 'wrote'} {out}")


@verb(plan_app, "check")
def plan_check(context: typer.Context, file: PlanFile) -> VerbAnswer:
    """Hold a plan against what a plan must be: each line green, or with its fix."""
    from coordinator.planning.review import SIGNED

    plan, checks = _reviewed(context, file)
    following = "" if any(check.name == SIGNED for check in checks) else f", then plan sign {file}"
    if plan is not None:
        checks = (*checks, *_certificates(context, plan))
    good = not _failed(checks)
    known = {"study": plan.study if plan else None, "hash": plan.hash if plan else None}

    return VerbAnswer(
        {"ok": good, **known, "checks": checks},
        lambda out: checklist(out, checks),
        "",
        (f"next: coordinator plan cost {file}{following}", "cyan")
        if good
        else ("The plan cannot be signed yet.", "bold red"),
        code=PlanRefusal.exit_code if not good else 0,
    )


def _reviewed(context: typer.Context, file: Path) -> tuple[StudyPlan | None, tuple[ChecklistLine, ...]]:
    """Review of a plan as `plan sign` would do it here."""
    from coordinator.planning.review import reviewed

    known = functools.partial(known_here, context)
    return reviewed(plan_text(file), today=today(), recipient=recipient(context), known=known)


def known_here(context: typer.Context, study: str) -> KnownStudy:
    """What is signed here of a study; nothing where there is no coordinator."""
    from coordinator.planning.review import KnownStudy

    if not (context.obj / FILE_NAME).exists():
        return KnownStudy()
    with open_store(CoordinatorConfig.load(context.obj), reads=True) as store:
        return KnownStudy.of(store, study)


def _failed(checks: Sequence[ChecklistLine]) -> list[ChecklistLine]:
    """Lines for each of which a plan is not signed."""
    return [check for check in checks if check.state == "fail"]


def _certificates(context: typer.Context, plan: StudyPlan) -> list[ChecklistLine]:
    """Checklist lines on the sites' certificates against the plan's calendar; empty where there is no coordinator."""
    if not (context.obj / FILE_NAME).exists():
        return []
    from coordinator.services.authority import Authority
    from coordinator.services.health import plan_lines

    config = CoordinatorConfig.load(context.obj)
    with open_store(config, reads=True) as store:
        authority = Authority.load(config.home)
        return plan_lines(plan, store.sites(), authority, authority.now())


@verb(plan_app, "prices")
def plan_prices(file: PlanFile) -> VerbAnswer:
    """The study's price list: what each mechanism would cost a person, what that covers, how wide intervals are."""
    from coordinator.planning.price import prices
    from shared.plans.plan import StudyPlan

    plan = StudyPlan.from_toml(plan_text(file))
    listed = prices(plan)

    found = {"study": plan.study, "delta": plan.budget.delta, "prices": [plain(asdict(one)) for one in listed]}
    rows = [
        [
            price.name,
            "–" if price.epsilon is None and not price.epsilon_given else shown_price(*_stated(price)),
            price.covered,
            "not known before" if price.width is None else f"{price.width:.2f}",
        ]
        for price in listed
    ]
    return VerbAnswer(
        found,
        tabled(["mechanism", "ε of one wave", "what it covers", "width"], rows, right=["ε of one wave"]),
        *(f"A larger ε of {price.name} buys: {price.buys}." if price.buys else None for price in listed),
        (
            f"ε is exact, at δ {shown_delta(plan.budget.delta)}. width: of a coefficient's interval, in widths of the "
            "same interval on the records themselves.",
            "dim",
        ),
        *((f"{names}: {unseen}", "dim") for unseen, names in _by_unseen(listed).items()),
    )


def _by_unseen(listed: Sequence[Price]) -> dict[str, str]:
    """Each distinct error that leaves no trace in a release (`Price.unseen`), to the first mechanism that has it."""
    found: dict[str, str] = {}
    for price in listed:
        if price.unseen:
            found.setdefault(price.unseen, price.name)
    return found


@verb(plan_app, "cost")
def plan_cost(
    context: typer.Context,
    file: PlanFile,
    waves: Annotated[int | None, typer.Option("--waves", help="Waves to price; the plan's own if left out.")] = None,
    persons: Annotated[int | None, typer.Option("--persons", help="Persons at the largest site, to judge δ.")] = None,
) -> VerbAnswer:
    """Price a plan: what each wave costs a person, and the last wave the budget affords."""
    from coordinator.planning.price import MANY, cost
    from shared.plans.plan import StudyPlan

    plan = StudyPlan.from_toml(plan_text(file))
    price = cost(plan, waves=waves, persons=persons)
    checks, unreviewed = _signing(context, file)
    refusals = _failed(checks)

    def show(out: Console) -> None:
        out.print(f"{price.study}, version {price.version}", style="bold")
        show_facts(
            out,
            ("mechanism", f"{price.mechanism}, {price.details}, d = {price.d} columns"),
            ("posture", price.posture),
            (
                "one wave alone",
                shown_price(*_stated(price), delta=price.delta) + (" (exact)" if price.epsilon is not None else ""),
            ),
            *(
                [("the rows alone", f"ε {shown_epsilon(price.rows)}; the rest is training")]
                if price.rows is not None and price.epsilon is not None and price.rows < price.epsilon
                else []
            ),
            *(
                [
                    (
                        "by the paper",
                        f"ε {shown_price(price.paper, price.epsilon_given)}, for the rows (Theorem 2; looser, never "
                        "charged)",
                    )
                ]
                if price.paper is not None
                else []
            ),
            *(
                [("training first", f"ε {shown_epsilon(price.training)}, once, to everybody; in every line below")]
                if price.training is not None
                else []
            ),
            *((f"seen by {who}", f"ε {shown_epsilon(epsilon)}") for who, epsilon in price.seen_by.items()),
            *([("budget", f"{_budget(plan)}, all waves")] if price.epsilon is not None else []),
        )
        out.print()
        rows = _wave_rows(price)
        if rows:
            charged, _ = shown_column({"": _stated(price)}, "ε charged so far")
            out.print(table(["wave", charged, "left", "affordable"], rows, right=["wave", charged, "left"]))
            out.print()
        last = price.last_affordable
        words = f"last affordable wave: {last:,}" if last else "not even one wave is affordable"
        if not price.redraws and len(price.waves) > 1:
            out.print("Nobody is drawn twice: whoever comes with a later wave pays for that wave alone.")
        if rows:
            out.print("every wave is affordable" if last == MANY else words, style="bold")
        out.print(price.translation.replace(": At ", ":\nAt ").replace(". With ", ".\nWith "))
        for condition in price.conditions:
            out.print(f"note  {condition.sentence}", style="yellow")
        if price.rows is not None and price.rows > 8.001 and price.w_for_8 is not None:
            given = f", given {price.epsilon_given}," if price.epsilon_given else ""
            out.print(f"For ε 8 in one wave{given} take w = {shown_room(price.w_for_8, 2)}.", style="cyan")
        if unreviewed:
            out.print(f"Signing could not be reviewed: {unreviewed}", style="yellow")
        elif checks:
            if refusals:
                out.print("The plan cannot be signed yet.", style="bold red")
            checklist(out, checks)
        elif last:
            out.print(f"next: coordinator plan sign {file}", style="cyan")

    answer = {"refusals": None if unreviewed else refusals, "unreviewed": unreviewed}
    return VerbAnswer({**plain(asdict(price)), **answer, "signed": len(refusals) < len(checks)}, show)


def _signing(context: typer.Context, file: Path) -> tuple[list[ChecklistLine], str]:
    """Lines that speak against signing a plan; or, where that cannot be reviewed here, why: a price needs no store."""
    from coordinator.planning.review import SIGNED

    try:
        checks = _reviewed(context, file)[1]
    except (Refusal, ImportError, OSError) as error:
        return [], f"{error}"
    return [check for check in checks if check.state == "fail" or check.name == SIGNED], ""


@verb(plan_app, "sign")
def plan_sign(
    config: CoordinatorConfig, store: Store, file: PlanFile, key: Keys = None, dry_run: DryRun = False
) -> VerbAnswer:
    """Sign a plan with the lead's key and publish it to the sites; they act on it once their stewards approve."""
    from coordinator.planning.review import changes, review
    from shared.plans.plan import sign_plan

    plan, checks = review(
        plan_text(file), today=today(), recipient=config.name, signed=lambda study: _last_plan(store, study)
    )
    last = None if plan is None else _last_plan(store, plan.study)
    if plan is not None and last is not None and plan.version <= last.version:
        same = plan.hash == last.hash
        raise PlanRollback(
            f"the version must be above the last signed one, {last.version}",
            given=f"{plan.version}" + (" (this very plan is already signed)" if same else ""),
            next_step=f"Set version = {last.version + 1}.",
        )
    failed = _failed(checks)
    warnings = [check for check in checks if check.state == "warn"]
    if plan is None or failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise PlanRefusal(
            "a plan must pass plan check before it is signed",
            given=f"{failed[0].name}: {failed[0].detail}{more}",
            next_step=failed[0].fix + (f" All of them: coordinator plan check {file}." if more else ""),
        )
    require_still_open(store, plan.study)
    differences = changes(last, plan) if last is not None else ()
    # As many as the version before asked for: one lead alone does not end that two must sign.
    least = max(config.threshold, plan.floors.leads, last.floors.leads if last is not None else 1)
    names = list(dict.fromkeys(key or [*lead_keys(config)][:least]))
    if len(names) < least:
        raise PlanRefusal(
            f"a plan must carry {least} lead signatures",
            given=f"{len(names)}",
            next_step="Repeat --key.",
        )
    if not dry_run:
        keys = [lead_key(config, name) for name in names]
        store.add_plan(sign_plan(plan, keys), plan)
    answer = {
        "study": plan.study,
        "version": plan.version,
        "hash": plan.hash,
        "signed_by": names,
        "changes": differences,
        "warnings": warnings,
        "signed": not dry_run,
    }

    did = "would sign" if dry_run else "signed and published"
    known = f"wave status {plan.study}" if differences else f"invite SITE --study {plan.study} --out SITE.invitation"
    return VerbAnswer(
        answer,
        (f"{did} {plan.study}, version {plan.version}", "bold"),
        labelled(("hash", plan.hash), ("signed by", ", ".join(names)), ("expires", f"{plan.expires}")),
        lambda out: checklist(out, warnings),
        *(f"  {change}" for change in differences),
        ("Every site must approve this version before its next release.", "yellow") if differences else None,
        (f"next: coordinator {known}", "cyan"),
    )


@verb(plan_app, "amend")
def plan_amend(
    store: Store,
    study: Study,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; STUDY-vN.toml if left out.")] = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write the next version of a study's plan as a draft to edit. It is signed like any plan, and approved anew."""
    from coordinator.answers.waves import draft

    last = store.plan(study).plan
    plan = replace(last, version=last.version + 1)
    path = write_draft(draft(plan), out or Path(f"{study}-v{plan.version}.toml"), dry_run=dry_run)

    return VerbAnswer(
        {"study": study, "version": plan.version, "file": str(path), "written": not dry_run},
        f"{'would write' if dry_run else 'wrote'} {path}: {study}, version {plan.version}, a draft",
        ("Each site sees what changed before it approves; until then it releases nothing.", "yellow"),
        (f"next: edit {path}, then coordinator plan check {path}", "cyan"),
    )


def write_draft(text: str, path: Path, *, dry_run: bool) -> Path:
    """Write a draft plan to a file that is not there yet. Raises: StateRefusal."""
    if path.exists():
        raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another --out.")
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


@verb(plan_app, "show")
def plan_show(
    store: Store,
    study: Study,
    version: Annotated[int | None, typer.Option("--version", help="Which version; the last if left out.")] = None,
) -> VerbAnswer:
    """Show a signed plan: what leaves the sites, how often, to whom, at which price, what is not covered."""
    from coordinator.planning.price import cost
    from shared.releases.receipt import coverage

    plan = store.plan(study, version).plan
    covered, not_covered = coverage(plan)
    price = cost(plan)
    charged = shown_price(*_stated(price))
    if price.epsilon is not None:
        waves = "1 wave" if len(price.waves) == 1 else f"{len(price.waves)} waves"
        total = shown_price(price.waves[-1].total, price.epsilon_given)
        charged = f"ε {charged} for a wave alone; ε {total} charged for {waves}"
    if price.training is not None:
        charged += f" and the training, which alone is ε {shown_epsilon(price.training)}"
    answer = {"hash": plan.hash, "plan": plan.to_canonical(), "covered": covered, "not_covered": not_covered}

    def show(out: Console) -> None:
        out.print(one_line(plan.title), style="bold")
        out.print(one_line(plan.purpose))
        show_facts(
            out,
            ("study", f"{plan.study}, version {plan.version}, expires {plan.expires}"),
            ("hash", plan.hash),
            ("recipient", plan.coordinator),
            ("who", plan.eligibility or "–"),
            ("mechanism", f"{price.mechanism}, {price.details}; posture {plan.posture}"),
            ("price", charged),
            ("budget", f"{_budget(plan)}, for one person"),
            ("in words", price.translation),
            ("rows", "analysts may download them" if plan.row_download else "analysts may not download them"),
        )
        out.print()
        columns = [
            [c.name, c.kind, c.label, c.unit, _range(c), c.missing if c.missing != "refuse" else ""]
            for c in plan.dictionary.columns
        ]
        out.print(table(["column", "kind", "meaning", "unit", "values", "missing"], columns))
        out.print()
        calendar = [[wave.number, wave.opens, wave.closes] for wave in plan.waves]
        out.print(table(["wave", "opens", "closes"], calendar, right=["wave"]))
        out.print()
        for name, formula in plan.estimands.items():
            out.print(f"planned  {name}: {formula}")
        show_sentences(out, "not covered by ε:", not_covered, "yellow")

    return VerbAnswer(answer, show)


def plan_text(file: Path) -> str:
    """The text of a plan. Raises: ParameterError (no such file)."""
    if not file.is_file():
        raise ParameterError("the file must exist", given=f"{file}", next_step="Write one with coordinator plan new.")
    return file.read_text(encoding="utf-8")


def recipient(context: typer.Context) -> str:
    """This coordinator's name, or nothing before init: a plan can be written anywhere."""
    try:
        return CoordinatorConfig.load(context.obj).name
    except StateRefusal:
        return ""


def _last_plan(store: Store, study: str) -> StudyPlan | None:
    from coordinator.planning.review import KnownStudy

    return KnownStudy.of(store, study).last


def _range(column: Any) -> str:
    if column.lower is not None:
        return f"{column.lower:g} to {column.upper:g}"
    return ", ".join(map(str, column.levels))


def _stated(price: Any) -> tuple[float | None, str]:
    """ε of a cost or a price, and what it takes as given."""
    return price.epsilon, price.epsilon_given


def _budget(plan: StudyPlan) -> str:
    return f"ε {shown_epsilon(plan.budget.epsilon)} at δ {shown_delta(plan.budget.delta)}"


def _wave_rows(price: PlanCost) -> list[list[Any]]:
    """Cells of the table of a plan's waves: number, ε charged, what is left of the budget, whether it affords it."""
    from rich.text import Text

    from coordinator.planning.price import abridged

    rows: list[list[Any]] = []
    for wave in abridged(price.waves, price.last_affordable):
        if wave is None:
            rows.append(["…", "", "", ""])
            continue
        paid = Text("yes", style="green") if wave.affordable else Text("no", style="bold red")
        rows.append([wave.number, shown_epsilon(wave.total), shown_room(max(wave.left, 0.0)), paid])
    return rows


# -- the end --------------------------------------------------------------------------------------------------------
@verb(plan_app, "retire")
def plan_retire(
    config: CoordinatorConfig,
    store: Store,
    study: Study,
    reason: Annotated[str, typer.Option("--reason", help="A line for everybody who reads the log.")],
    key: Keys = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """End a study, by the leads' signatures: nothing more is made or taken of it. What it has stays until its day."""
    from coordinator.cli.membership import next_grant, signing_keys
    from coordinator.services.membership import Members
    from coordinator.services.quotas import end_of, end_study
    from shared.base.chain import GENESIS
    from shared.membership.study_ends import StudyEnd

    plan = store.plan(study).plan
    members = Members(store, config.name)
    sites = list(store.members(study))
    done = end_of(store, study)
    if not dry_run:
        keys = signing_keys(config, key, plan.floors.leads)
        leads = members.leads(config.home)
        said = done or StudyEnd(
            number=1,
            previous=GENESIS,
            day=today().isoformat(),
            coordinator=config.name,
            study=study,
            plan_hash=plan.hash,
            reason=reason,
        )
        if done is None:
            end_study(store, said.signed(keys), leads, config.name)
        for site in sites:  # each sees it at its next round, in its own chain of grants, and stops by itself
            members.grant(next_grant(store, config, site, study, granted=False).signed(keys), leads)
    until = None if plan.retention is None else plan.retention.until
    answer = {"study": study, "sites": sites, "kept_until": until, "retired": not dry_run}

    words = f"{until}; then it is deleted by itself" if until else "for ever: its plan names no day"
    return VerbAnswer(
        answer,
        f"{'would retire' if dry_run else 'retired'} {study}, and taken out of it: {len(sites)} site(s)",
        "What was delivered stays, and questions are answered, until its retention is over.",
        labelled(("kept until", words)),
    )


@verb(plan_app, "delete")
def plan_delete(config: CoordinatorConfig, store: Store, study: Study, dry_run: DryRun = False) -> VerbAnswer:
    """Delete what a study has, once its retention is over, and show the proof: the log's entry, under a signed head."""
    from coordinator.services.authority import Authority
    from coordinator.services.clocks import SeenClocks
    from coordinator.services.quotas import delete_due, deleted

    plan = store.plan(study).plan
    authority = Authority.load(config.home)
    known = next((one for one in deleted(store) if one.plan_hash == plan.hash), None)
    due = known is not None or study in delete_due(store, config.home, today(), dry_run=True)
    if not due:
        raise StateRefusal(
            "a study is deleted once its retention is over",
            given=f"kept until {plan.retention.until}" if plan.retention else "a plan that names no day",
            next_step=f"Nothing was deleted. An earlier day is a new version of its plan: plan amend {study}.",
        )
    answer: dict[str, Any] = {"study": study, "deleted": not dry_run}
    if not dry_run:
        if known is None:
            SeenClocks(store, authority.certificate).verdict(authority.now()).require()
            delete_due(store, config.home, today())
            known = [one for one in deleted(store) if one.study == study][-1]
        answer |= _proof(store, authority, known)

    def show(out: Console) -> None:
        out.print(f"{'would delete' if dry_run else 'deleted'} what {study} has", style="bold")
        if known is not None and not dry_run:
            show_facts(
                out,
                ("day", known.day),
                ("bundles", f"{len(known.bundles)}"),
                ("answers", f"{known.answers}"),
                ("log entry", f"{known.log_index}"),
            )
            out.print("Log, plans, statements and receipts stay. --json writes the proof for anybody to keep.")

    return VerbAnswer(answer, show)


def _proof(store: Store, authority: Any, known: Deletion) -> dict[str, Any]:
    """Proof of a deletion that a third party can verify: the log's entry, its inclusion proof and the signed head."""
    from coordinator.store.log_watch import LogWatch

    size, head = LogWatch(store, coordinator=authority.coordinator, key=authority.witness).head(today())
    return {
        "day": known.day,
        "until": known.until,
        "bundles": known.bundles,
        "answers": known.answers,
        "log_index": known.log_index,
        "entry": store.log()[known.log_index].entry.decode(),
        "inclusion": [b64encode(node).decode() for node in store.prove(known.log_index, size)],
        "head": head.decode(),
    }
