"""The frame of the command line: its groups of verbs, the options they share, and how they show facts."""

from __future__ import annotations

import datetime as dt
import difflib
import functools
from contextlib import closing, contextmanager
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.config import HOME_VARIABLE, CoordinatorConfig, default_home
from shared.base.clock import utc_now
from shared.errors import PlanRefusal, StateRefusal
from shared.terminal import VerbAnswer, application, command, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from rich.console import Console

    from coordinator.store.store import Store
    from shared.base.keys import PublicKey, SigningKey

__all__ = [
    "DateRead",
    "DryRun",
    "Json",
    "Keys",
    "PlanFile",
    "Site",
    "Study",
    "analyst_app",
    "app",
    "ca_app",
    "clock_app",
    "federate_app",
    "labelled",
    "lead_app",
    "lead_key",
    "lead_keys",
    "log_app",
    "open_store",
    "plan_app",
    "release_app",
    "require_study",
    "show_facts",
    "show_sentences",
    "store_app",
    "today",
    "verb",
    "wave_app",
]

app = application("Collect privatised releases from hospitals, and pool them.")
plan_app = application("Write, check, price and sign study plans.")
release_app = application("Look at one release.")
wave_app = application("The calendar of a study, and who has delivered. Nothing here starts work at a site.")
federate_app = application(
    "A flow that all sites of a study train together, or their secure sum. The sites dial in; no record moves."
)
analyst_app = application("Analysts' tokens: who may ask, in which studies, until when.")
log_app = application("The append-only log of accepted releases.", bare=True)
ca_app = application("The certificate authority: how long it lasts, and the next one.", bare=True)
lead_app = application("Who leads: whose signatures plans and grants carry, and how many.")
store_app = application("The store's database, and another one in its place.")
clock_app = application("Whose clock says what, and what a wrong one has dated.", bare=True)

app.add_typer(plan_app, name="plan", rich_help_panel="Set up")
app.add_typer(release_app, name="release", rich_help_panel="Releases")
app.add_typer(wave_app, name="wave", rich_help_panel="Releases")
app.add_typer(federate_app, name="federate", rich_help_panel="Releases")
app.add_typer(analyst_app, name="analyst", rich_help_panel="Answers")
app.add_typer(log_app, name="log", rich_help_panel="Releases")
app.add_typer(ca_app, name="ca", rich_help_panel="Set up")
app.add_typer(lead_app, name="lead", rich_help_panel="Set up")
app.add_typer(store_app, name="store", rich_help_panel="Set up")
app.add_typer(clock_app, name="clock", rich_help_panel="Set up")

Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
DateRead = Annotated[
    dt.datetime | None,
    typer.Option(
        "--date", formats=["%Y-%m-%d"], help="Today's date, read off another clock; where nobody vouches for this one."
    ),
]
PlanFile = Annotated[Path, typer.Argument(help="The study plan, a TOML file.")]
Site = Annotated[str, typer.Argument(help="The site's name.")]
Study = Annotated[str, typer.Argument(help="The study.")]
Keys = Annotated[list[str] | None, typer.Option("--key", help="Name of a lead's key; repeat for several.")]


@app.callback()
def _home(
    context: typer.Context,
    home: Annotated[Path | None, typer.Option("--home", help=f"Home folder (or {HOME_VARIABLE}).")] = None,
) -> None:
    context.obj = home or default_home()


@contextmanager
def open_store(config: CoordinatorConfig, *, reads: bool = False) -> Iterator[Store]:
    """This coordinator's store, closed when the block ends. An unknown study is refused with those there are.

    (Only here: what a site or an analyst asks for is refused without a list.)

    Args:
        reads: nothing is to be written: a database server that is away is waited for a few seconds only.
    """
    from coordinator.store.engine import BRIEFLY
    from coordinator.store.members import UNKNOWN_PLAN
    from coordinator.store.store import Store

    patience = BRIEFLY if reads else None
    with closing(Store.open(config.home, config.store, config.bundles, patience=patience)) as store:
        try:
            yield store
        except PlanRefusal as refusal:
            if refusal.must != UNKNOWN_PLAN:
                raise
            raise PlanRefusal(refusal.must, given=refusal.given, next_step=_nearest(store, refusal.given)) from None


_last = Parameter.KEYWORD_ONLY
SHARED = (
    Parameter("context", _last, annotation=typer.Context),
    Parameter("dry_run", _last, default=False, annotation=DryRun),
    Parameter("json", _last, default=False, annotation=Json),
)
GIVEN = {"CoordinatorConfig": "config", "Store": "store"}


@contextmanager
def _at_home(said: Mapping[str, Any], asked: Collection[str], *, keeps: bool) -> Iterator[dict[str, Any]]:
    if not {"config", "store"} & {*asked}:
        yield {}
        return
    config = CoordinatorConfig.load(said["context"].obj)
    if "store" not in asked:
        yield {"config": config}
        return
    with open_store(config, reads=not keeps and "dry_run" not in asked) as store:
        yield {"config": config, "store": store}


def verb(
    group: typer.Typer, name: str | None = None, *, keeps: bool = False, **listed: Any
) -> Callable[[Callable[..., VerbAnswer]], Callable[..., VerbAnswer]]:
    """Register a verb: it has ``--json``, works with the settings and the store it asks for, and gives its answer.

    Args:
        name: as it is typed; the function's where left out.
        keeps: it writes into the store and has no ``--dry-run``: an answer that is handed out is kept.
        listed: as `typer.Typer.command` takes it.
    """

    def register(function: Callable[..., VerbAnswer]) -> Callable[..., VerbAnswer]:
        group.command(name, **listed)(command(function, SHARED, GIVEN, functools.partial(_at_home, keeps=keeps)))
        return function

    return register


def require_study(store: Store, study: str) -> None:
    """Refuse a study that this coordinator does not know; a blank is no study in particular. Raises: PlanRefusal."""
    if study:
        store.plan(study)


def _nearest(store: Store, given: str) -> str:
    """The studies and versions there are, or the one that was meant."""
    versions: dict[str, list[int]] = {}
    for stored in store.plans():
        versions.setdefault(stored.plan.study, []).append(stored.plan.version)
    study = given.partition(" version ")[0]
    if study in versions:
        return f"Versions of {study}: {', '.join(map(str, versions[study]))}."
    near = difflib.get_close_matches(study, list(versions), n=1)
    listed = f"Studies here: {', '.join(versions) or 'none signed yet'} (coordinator studies)."
    return f"Did you mean {near[0]!r}? {listed}" if near else listed


def today() -> dt.date:
    """Today, by UTC: the day that plans, waves and tombstones are told in."""
    return utc_now().date()


def lead_keys(config: CoordinatorConfig) -> dict[str, PublicKey]:
    """The leads' public keys, by name; they are what a site pins."""
    from shared.base.keys import PublicKey

    found = {path.stem: PublicKey(path.read_text().strip()) for path in sorted((config.home / "keys").glob("*.pub"))}
    if not found:
        raise StateRefusal("the coordinator must have a lead's key", given="none", next_step="Run coordinator init.")
    return found


def lead_key(config: CoordinatorConfig, name: str) -> SigningKey:
    """A lead's key, opened with the passphrase where it has one. Raises: PassphraseRefusal, StateRefusal."""
    from shared.base.keys import SigningKey
    from shared.base.passphrases import opened

    path = config.home / "keys" / f"{name}.pem"
    encrypted = path.is_file() and b"ENCRYPTED" in path.read_bytes()
    return opened(path, name) if encrypted else SigningKey.load(path)


def require_still_open(store: Store, study: str) -> None:
    """Refuse what would go on with a study that its leads have ended. Raises: StateRefusal."""
    from coordinator.store.membership import require_open

    store.read(lambda c: require_open(c, study))


def show_facts(out: Console, *facts: tuple[str, str]) -> None:
    """Labels and values in two columns, long values folded."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in facts:
        grid.add_row(f"  {label}", Text(one_line(value)))
    out.print(grid)


def labelled(*pairs: tuple[str, str] | None) -> Callable[[Console], None]:
    """`show_facts` as a part of a screen; None is left out."""
    return lambda out: show_facts(out, *(pair for pair in pairs if pair))


def show_sentences(out: Console, title: str, sentences: Sequence[str], style: str) -> None:
    """A heading and its sentences, one bullet each."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row("  ·", Text(one_line(sentence)))
    out.print()
    out.print(title, style=style)
    out.print(grid)
