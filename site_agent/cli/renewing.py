"""The site's next certificate, where somebody must lend a hand: ``renew``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.base.clock import utc_now
from shared.errors import DataFileRefusal, StateRefusal, UsageRefusal
from shared.terminal import VerbAnswer
from site_agent.cli.frame import Dry, app, screen, verb
from site_agent.desk import Desk

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["renew"]


@verb(app, noted="renew")
def renew(
    desk: Desk,
    late: Annotated[
        bool, typer.Option("--late", help="By hand: the certificate is over, and nothing else opens the door.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="With --late: file to write for the study lead.")
    ] = None,
    answer: Annotated[
        Path | None,
        typer.Option("--answer", exists=True, dir_okay=False, help="With --late: the file that came back."),
    ] = None,
    authority: Annotated[
        str,
        typer.Option("--authority", help="With --answer: fingerprint of the coordinator's authority, as you hear it."),
    ] = "",
    dry_run: Dry = False,
) -> VerbAnswer:
    """Get this site's next certificate now. `run` does it by itself from half of the certificate's life on.

    A site that was away for longer than its certificate lives adds --late: a file goes to the study lead, who compares
    its fingerprint with you on the telephone, and a file comes back. Ledger, keys and history stay as they are. So does
    one whose coordinator had to replace its authority: it adds --authority, with what the lead reads out.
    """
    alone = bool(authority) and answer is None
    if late == (out is None and answer is None) or (out is not None and answer is not None) or alone:
        raise UsageRefusal(
            "--late must be given with --out FILE, then with --answer FILE (and --authority), and these only with it",
            given="another choice",
            next_step="Without --late: site-agent renew.",
        )
    if out is not None:
        return _ask(desk, out, dry_run=dry_run)
    return _now(desk, dry_run=dry_run) if answer is None else _take(desk, answer, authority, dry_run=dry_run)


def _now(desk: Desk, *, dry_run: bool) -> VerbAnswer:
    from site_agent.decide.joining import renewal
    from site_agent.identity import certificate_life

    before = certificate_life(desk.config, utc_now())
    if before is None:
        raise StateRefusal("a site must have joined to renew", given="no certificate", next_step="site-agent join")
    life = before if dry_run else renewal.renew(desk).life
    body = {"site": desk.config.site, "until": life.ends.date(), "days": life.days, "renewed": not dry_run}

    return VerbAnswer(
        body,
        screen.heading(f"Certificate of {desk.config.site}", "dry run, nothing asked" if dry_run else "renewed"),
        f"{'The one in force: ' if dry_run else ''}{life.words}.",
        screen.next_step("site-agent status"),
    )


def _ask(desk: Desk, out: Path, *, dry_run: bool) -> VerbAnswer:
    from shared.base.keys import write_private
    from site_agent.decide.joining import renewal

    if out.exists():
        raise StateRefusal("the request's file must be new", given=f"{out}", next_step="Choose another --out.")
    data, fingerprint = renewal.ask_late(desk, dry_run=dry_run)
    if not dry_run:
        write_private(out, data, new=True)
    body: dict[str, Any] = {"site": desk.config.site, "file": out, "fingerprint": fingerprint, "written": not dry_run}

    def show(shown: Console) -> None:
        from site_agent.show import screens

        screens.heading(shown, f"Late renewal of {desk.config.site}", "dry run, nothing written" if dry_run else "")
        if not dry_run:
            screens.settings(shown, [("request", f"{out}"), ("fingerprint", fingerprint)])
            shown.print()
            shown.print("Send the file to the study lead; it holds no secret. Read the fingerprint on the telephone.")
        screens.next_step(shown, "site-agent renew --late --answer FILE     (the file that comes back)")

    return VerbAnswer(body, show)


def _take(desk: Desk, answer: Path, authority: str, *, dry_run: bool) -> VerbAnswer:
    from site_agent.decide.joining import renewal

    try:
        data = answer.read_bytes()
    except OSError as error:
        raise DataFileRefusal(f"{answer.name} must be readable", given=error.strerror or "an error") from None
    before = desk.config.ca_fingerprint
    life = renewal.take_late(desk, data, authority=authority, dry_run=dry_run)
    body = {"site": desk.config.site, "until": life.ends.date(), "days": life.days, "renewed": not dry_run}
    other = desk.config.ca_fingerprint != before

    what = "dry run, nothing changed" if dry_run else "renewed; ledger and keys are as they were"
    return VerbAnswer(
        body,
        screen.heading(f"Certificate of {desk.config.site}", what),
        f"{life.words}.".capitalize(),
        "Another authority of the coordinator is pinned, as its leads have signed it. The ledger says so."
        if other
        else None,
        screen.next_step("site-agent run --once"),
    )
