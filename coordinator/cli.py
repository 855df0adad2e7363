"""`coordinator`: the study lead's command line.

Each verb is one library call and a way of showing its answer. Verbs that read take ``--json``; verbs that change
something take ``--dry-run`` as well. Everything heavy is imported inside the verb that needs it, so that help is
instant. There is no verb that starts work at a site or sends one code: a site acts on a plan its steward approved.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.config import FILE_NAME, HOME_VARIABLE, Config, default_home
from shared.errors import ParameterError, PlanRefusal, PlanRollback, StateRefusal
from shared.terminal import application, checklist, emit, run, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from coordinator.store import Store
    from shared.keys import SigningKey
    from shared.plan import StudyPlan

__all__ = ["app", "main"]

PASSPHRASE_VARIABLE = "TRIBUTARY_PASSPHRASE"

app = application("Collect privatised releases from hospitals, and pool them.")
plan_app = application("Write, check, price and sign study plans.")
release_app = application("Look at one release.")
log_app = application("The append-only log of accepted releases.")
app.add_typer(plan_app, name="plan")
app.add_typer(release_app, name="release")

Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
PlanFile = Annotated[Path, typer.Argument(help="The study plan, a TOML file.")]
Site = Annotated[str, typer.Argument(help="The site's name.")]


@app.callback()
def _home(
    context: typer.Context,
    home: Annotated[Path | None, typer.Option("--home", help=f"Home folder (or {HOME_VARIABLE}).")] = None,
) -> None:
    context.obj = home or default_home()


def main(argv: Sequence[str] | None = None) -> int:
    """The `coordinator` command; returns its exit code."""
    return run(app, name="coordinator", argv=argv)


# -- setting up ---------------------------------------------------------------------------------------------------
@app.command()
def init(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name", help="The coordinator's id; plans name it.")] = "tributary-hub",
    address: Annotated[str, typer.Option("--address", help="host:port that sites dial.")] = "localhost:8443",
    listen: Annotated[
        str, typer.Option("--listen", help="host:port to bind; the port of --address if left out.")
    ] = "",
    san: Annotated[list[str] | None, typer.Option("--san", help="Further DNS name or IP in the certificate.")] = None,
    lead: Annotated[str, typer.Option("--lead", help="Name of the study lead's key.")] = "lead",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make the home folder: settings, certificate authority, server certificate and the lead's key."""
    home: Path = context.obj
    host = address.rpartition(":")[0].strip("[]")
    config = Config(
        home=home,
        name=name,
        address=address,
        listen=listen or f"0.0.0.0:{address.rpartition(':')[2]}",
        names=tuple(dict.fromkeys([host, *(san or [])])),
    )
    if (home / FILE_NAME).exists():
        raise StateRefusal(
            "the home folder must be new",
            given=f"{home}",
            next_step=f"Edit its {FILE_NAME}, or choose another --home.",
        )
    if dry_run:
        made = {"home": str(home), "name": name, "address": address, "names": config.names, "created": False}
        emit(made, as_json=json, show=lambda out: out.print(f"would create {home} for {name} at {address}"))
        return
    from coordinator.authority import Authority
    from shared.keys import SigningKey, write_private

    passphrase = _passphrase(confirm=True)
    key = SigningKey.generate()
    key.save(home / "keys" / f"{lead}.pem", passphrase)
    (home / "keys" / f"{lead}.pub").write_text(key.public.hex + "\n")
    authority = Authority.create(home, name=name, address=address, names=config.names)
    write_private(home / FILE_NAME, config.to_toml().encode())
    _open(config).close()
    made = {
        "home": str(home),
        "name": name,
        "address": address,
        "names": config.names,
        "ca_fingerprint": authority.fingerprint,
        "lead": lead,
        "lead_fingerprint": key.public.fingerprint,
        "passphrase": passphrase is not None,
        "created": True,
    }

    def show(out: Console) -> None:
        out.print(f"{name} is set up in {home}", style="bold")
        _facts(
            out,
            ("sites dial", address),
            ("certificate for", ", ".join(config.names)),
            ("CA fingerprint", authority.fingerprint),
            (f"key of {lead}", key.public.fingerprint),
        )
        if passphrase is None:
            out.print("The lead's key has no passphrase: whoever reads this folder can sign plans.", style="yellow")
        out.print("next: coordinator plan new STUDY", style="cyan")

    emit(made, as_json=json, show=show)


@app.command()
def serve(
    context: typer.Context,
    address: Annotated[str, typer.Option("--address", help="host:port to bind, instead of the setting.")] = "",
) -> None:
    """Answer sites, in the foreground, until it is told to stop (SIGTERM, or Ctrl-C)."""
    config = Config.load(context.obj)
    from coordinator.collect import serve as collect

    collect(config.home, address or config.listen)


# -- plans --------------------------------------------------------------------------------------------------------
@plan_app.command("new")
def plan_new(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="Short name of the study, a plain word.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; STUDY.toml if left out.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a commented study plan with an example dictionary, ready to edit."""
    from coordinator.planning import template

    path = out or Path(f"{study}.toml")
    text = template(study, coordinator=_name(context) or "tributary-hub", today=_today())
    if path.exists():
        raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another --out.")
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def show(shown: Console) -> None:
        shown.print(f"{'would write' if dry_run else 'wrote'} {path}")
        shown.print(f"next: edit it, then coordinator plan check {path}", style="cyan")

    emit({"file": str(path), "study": study, "written": not dry_run}, as_json=json, show=show)


@plan_app.command("check")
def plan_check(context: typer.Context, file: PlanFile, json: Json = False) -> None:
    """Hold a plan against what a plan must be: each line green, or with its fix."""
    from coordinator.planning import review

    plan, checks = review(_text(file), today=_today(), recipient=_name(context))
    good = all(check.state != "fail" for check in checks)
    answer = {
        "ok": good,
        "study": plan.study if plan else None,
        "hash": plan.hash if plan else None,
        "checks": checks,
    }

    def show(out: Console) -> None:
        checklist(out, checks)
        out.print()
        if good:
            out.print(f"next: coordinator plan cost {file}, then plan sign {file}", style="cyan")
        else:
            out.print("The plan cannot be signed yet.", style="bold red")

    emit(answer, as_json=json, show=show)
    if not good:
        raise typer.Exit(PlanRefusal.exit_code)


@plan_app.command("cost")
def plan_cost(
    file: PlanFile,
    waves: Annotated[int | None, typer.Option("--waves", help="Waves to price; the plan's own if left out.")] = None,
    persons: Annotated[int | None, typer.Option("--persons", help="Persons at the largest site, to judge δ.")] = None,
    json: Json = False,
) -> None:
    """Price a plan: what each wave costs a person, and the last wave the budget affords."""
    from coordinator.client import number
    from coordinator.planning import MANY, cost
    from shared.plan import StudyPlan

    price = cost(StudyPlan.from_toml(_text(file)), waves=waves, persons=persons)

    def show(out: Console) -> None:
        from rich.text import Text

        out.print(f"{price.study}, version {price.version}", style="bold")
        _facts(
            out,
            ("mechanism", f"latent noise injection, w = {price.w:g}, R = {price.radius:.4g}, d = {price.d} columns"),
            ("one wave alone", f"ε {number(price.epsilon)} at δ {price.delta:g} (exact)"),
            ("by the paper", f"ε {number(price.paper)} (Theorem 2; looser, never charged)"),
            ("budget", f"ε {price.cap:g} at δ {price.delta:g}, all waves"),
        )
        out.print()
        rows = []
        for wave in _abridged(price.waves, price.last_affordable):
            if wave is None:
                rows.append(["…", "", "", ""])
                continue
            paid = Text("yes", style="green") if wave.affordable else Text("no", style="bold red")
            rows.append([wave.number, number(wave.total), number(max(wave.left, 0.0)), paid])
        out.print(
            table(
                ["wave", "ε charged so far", "left", "affordable"], rows, right=["wave", "ε charged so far", "left"]
            )
        )
        out.print()
        last = price.last_affordable
        words = f"last affordable wave: {last:,}" if last else "not even one wave is affordable"
        out.print("every wave is affordable" if last == MANY else words, style="bold")
        out.print(price.translation)
        if price.epsilon > 8:
            out.print(f"For ε 8 in one wave take w = {price.w_for_8:.2g}.", style="cyan")

    emit(price, as_json=json, show=show)


@plan_app.command("sign")
def plan_sign(
    context: typer.Context,
    file: PlanFile,
    key: Annotated[list[str] | None, typer.Option("--key", help="Name of a lead's key; repeat for several.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Sign a plan with the lead's key and publish it to the sites; they act on it once their stewards approve."""
    from coordinator.planning import changes, review
    from shared.plan import sign_plan

    config = Config.load(context.obj)
    plan, checks = review(_text(file), today=_today(), recipient=config.name)
    failed = [check for check in checks if check.state == "fail"]
    if plan is None or failed:
        raise PlanRefusal(
            "a plan must pass plan check before it is signed",
            given=f"{failed[0].name}: {failed[0].detail}",
            next_step=failed[0].fix,
        )
    with _open(config) as store:
        last = _last_plan(store, plan.study)
        if last is not None and plan.version <= last.version:
            same = plan.hash == last.hash
            raise PlanRollback(
                f"the version must be above the last signed one, {last.version}",
                given=f"{plan.version}" + (" (this very plan is already signed)" if same else ""),
                next_step=f"Set version = {last.version + 1}.",
            )
        differences = changes(last, plan) if last is not None else ()
        names = key or ["lead"]
        if not dry_run:
            keys = [_lead_key(config, name) for name in names]
            if len(keys) < config.threshold:
                raise PlanRefusal(
                    f"a plan must carry {config.threshold} lead signatures",
                    given=f"{len(keys)}",
                    next_step="Repeat --key.",
                )
            store.add_plan(sign_plan(plan, keys), plan)
    answer = {
        "study": plan.study,
        "version": plan.version,
        "hash": plan.hash,
        "signed_by": names,
        "changes": differences,
        "signed": not dry_run,
    }

    def show(out: Console) -> None:
        did = "would sign" if dry_run else "signed and published"
        out.print(f"{did} {plan.study}, version {plan.version}", style="bold")
        _facts(out, ("hash", plan.hash), ("signed by", ", ".join(names)), ("expires", f"{plan.expires}"))
        for change in differences:
            out.print(f"  {change}")
        if differences:
            out.print("Every site must approve this version before its next release.", style="yellow")
        out.print(f"next: coordinator invite SITE --study {plan.study} --out SITE.invitation", style="cyan")

    emit(answer, as_json=json, show=show)


@plan_app.command("show")
def plan_show(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="The study.")],
    version: Annotated[int | None, typer.Option("--version", help="Which version; the last if left out.")] = None,
    json: Json = False,
) -> None:
    """Show a signed plan: what leaves the sites, how often, to whom, at which price, what is not covered."""
    from shared.release import coverage

    with _open(Config.load(context.obj)) as store:
        _, plan = store.plan(study, version)
    covered, not_covered = coverage(plan)
    answer = {"hash": plan.hash, "plan": plan.to_canonical(), "covered": covered, "not_covered": not_covered}

    def show(out: Console) -> None:
        out.print(f"{plan.title}", style="bold")
        out.print(plan.purpose)
        _facts(
            out,
            ("study", f"{plan.study}, version {plan.version}, expires {plan.expires}"),
            ("hash", plan.hash),
            ("recipient", plan.coordinator),
            ("who", plan.eligibility or "–"),
            ("mechanism", f"latent noise injection, w = {plan.release.w:g}, posture {plan.posture}"),
            ("budget", f"ε {plan.budget.epsilon:g} at δ {plan.budget.delta:g}"),
            ("rows", "analysts may download them" if plan.row_download else "analysts may not download them"),
        )
        columns = [
            [c.name, c.kind, c.label, c.unit, _range(c), c.missing if c.missing != "refuse" else ""]
            for c in plan.dictionary.columns
        ]
        out.print(table(["column", "kind", "meaning", "unit", "values", "missing"], columns))
        out.print()
        waves = [[wave.number, wave.opens, wave.closes] for wave in plan.waves]
        out.print(table(["wave", "opens", "closes"], waves, right=["wave"]))
        out.print()
        for name, formula in plan.estimands.items():
            out.print(f"planned  {name}: {formula}")
        out.print("\nnot covered by ε:", style="yellow")
        for sentence in not_covered:
            out.print(f"  · {sentence}")

    emit(answer, as_json=json, show=show)


# -- small things the verbs share ----------------------------------------------------------------------------------
def _open(config: Config) -> Store:
    from coordinator.store import Store

    return Store(config.url)


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def _text(file: Path) -> str:
    if not file.is_file():
        raise ParameterError("the file must exist", given=f"{file}", next_step="Write one with coordinator plan new.")
    return file.read_text(encoding="utf-8")


def _name(context: typer.Context) -> str:
    """This coordinator's name, or nothing before init: a plan can be written anywhere."""
    try:
        return Config.load(context.obj).name
    except StateRefusal:
        return ""


def _passphrase(*, confirm: bool = False) -> str | None:
    """From the environment, else asked for where there is a person, else none."""
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given or None
    if not sys.stdin.isatty():
        return None
    import getpass

    asked = getpass.getpass("passphrase of the lead's key (empty for none): ", stream=sys.stderr)
    if confirm and asked and getpass.getpass("once more: ", stream=sys.stderr) != asked:
        raise ParameterError("the passphrase must be typed the same twice", given="two that differ")
    return asked or None


def _lead_key(config: Config, name: str) -> SigningKey:
    from shared.keys import SigningKey

    path = config.home / "keys" / f"{name}.pem"
    encrypted = path.is_file() and b"ENCRYPTED" in path.read_bytes()
    return SigningKey.load(path, _passphrase() if encrypted else None)


def _last_plan(store: Store, study: str) -> StudyPlan | None:
    try:
        return store.plan(study)[1]
    except PlanRefusal:
        return None


def _facts(out: Console, *facts: tuple[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in facts:
        grid.add_row(f"  {label}", Text(value))
    out.print(grid)


def _range(column: Any) -> str:
    if column.lower is not None:
        return f"{column.lower:g} to {column.upper:g}"
    return ", ".join(map(str, column.levels))


def _abridged(waves: Sequence[Any], last: int) -> list[Any]:
    """At most about a dozen waves: the first, those around the last affordable one, and the final one."""
    if len(waves) <= 14:
        return list(waves)
    keep = {*range(1, 7), *range(last - 1, last + 3), len(waves)}
    out: list[Any] = []
    for wave in waves:
        if wave.number in keep:
            out.append(wave)
        elif out[-1] is not None:
            out.append(None)
    return out


if __name__ == "__main__":
    raise SystemExit(main())
