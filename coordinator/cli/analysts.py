"""Analysts' tokens: ``analyst add``, ``list``, ``revoke``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.options import DryRun, analyst_app, today, verb
from coordinator.config import FILE_NAME, CoordinatorConfig
from shared.errors import StateRefusal
from shared.terminal import VerbAnswer, plain, table

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.store.store import Store


__all__ = ["analyst_add", "analyst_list", "analyst_revoke"]


@verb(analyst_app, "add")
def analyst_add(
    config: CoordinatorConfig,
    store: Store,
    name: Annotated[str, typer.Argument(help="The analyst's name, a plain word.")],
    study: Annotated[list[str], typer.Option("--study", help="A study it is for; repeat for several.")],
    role: Annotated[str, typer.Option("--role", help="analyst, lead (also sees downloads) or auditor.")] = "analyst",
    days: Annotated[int, typer.Option("--days", help="Days until it expires.")] = 365,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; NAME.token.json if left out.")] = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Make a token and write it to a file, once: only its hash is kept here."""
    from coordinator.analyst.remote import Pass
    from coordinator.services.analysts import Analysts
    from coordinator.services.authority import Authority
    from shared.wire.transport import SERVER_NAME

    if not config.analysts:
        raise StateRefusal(
            "the coordinator must have an address for analysts",
            given="none",
            next_step=f'Set analysts = "host:port" in {FILE_NAME}, and restart coordinator serve.',
        )
    path = out or Path(f"{name}.token.json")
    if path.exists():
        raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another --out.")
    for known in study:
        store.plan(known)
    made = {"name": name, "role": role, "studies": study, "file": str(path), "created": not dry_run}
    if not dry_run:
        account, token = Analysts(store).add(name, studies=study, role=role, days=days, today=today())
        authority = Authority.load(config.home)
        Pass(
            address=config.analysts,
            server_name=SERVER_NAME,
            ca_pem=authority.ca_pem,
            witness=authority.witness.public.hex,
            name=account.name,
            role=account.role,
            studies=account.studies,
            expires=account.expires.isoformat(),
            token=token,
        ).save(path)
        made |= {"id": account.id, "expires": account.expires}

    did = "would write" if dry_run else "wrote"
    return VerbAnswer(
        made,
        (f"{did} {path}: {name}, {role} of {', '.join(study)}", "bold"),
        (f"good until {made['expires']}; the file is a password: hand it over as one", "yellow")
        if not dry_run
        else None,
    )


@verb(analyst_app, "list")
def analyst_list(store: Store) -> VerbAnswer:
    """List the tokens: whose they are, what for, until when. The tokens themselves cannot be shown."""
    from coordinator.services.analysts import Analysts

    found = Analysts(store).accounts()
    answer = [{**plain(account), "state": account.state(today())} for account in found]

    def show(out: Console) -> None:
        if not answer:
            out.print("No analyst has a token yet.")
            return
        heads = ["name", "role", "studies", "id", "expires", "state"]
        rows = [
            [row["name"], row["role"], ", ".join(row["studies"]), *(row[name] for name in heads[3:])] for row in answer
        ]
        out.print(table(heads, rows))

    return VerbAnswer(answer, show)


@verb(analyst_app, "revoke")
def analyst_revoke(
    store: Store,
    name: Annotated[str, typer.Argument(help="The analyst's name (all tokens), or one token's id.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Take tokens back. The next call with one is refused; what was answered stays in the record."""
    from coordinator.services.analysts import Analysts

    analysts = Analysts(store)
    if dry_run:
        found = [row for row in analysts.accounts() if name in (row.name, row.id) and not row.revoked]
    else:
        found = list(analysts.revoke(name, today=today()))
    words = f"{'would revoke' if dry_run else 'revoked'} {len(found)} token(s) of {name}"
    answer = {"name": name, "ids": [account.id for account in found], "revoked": not dry_run}
    return VerbAnswer(answer, words)
