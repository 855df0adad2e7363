"""With the coordinator: ``resend``, ``log``; by courier, ``outbox export`` and ``outbox import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import DataFileRefusal, IntegrityRefusal, StateRefusal, UnknownMethod, UsageRefusal
from shared.terminal import VerbAnswer, tabled
from site_agent.cli.frame import Dry, app, outbox_app, screen, verb
from site_agent.desk import today

if TYPE_CHECKING:
    from site_agent.config import SiteConfig
    from site_agent.desk import Desk

__all__ = ["log", "outbox_export", "outbox_import", "resend"]

CourierFile = Annotated[Path, typer.Argument(metavar="FILE", help="A new file, on what is carried.", dir_okay=False)]


@verb(app, noted="resend")
def resend(
    desk: Desk,
    study: Annotated[str | None, typer.Argument(help="One study; all without it.")] = None,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Send again what the coordinator acknowledged and has lost: the same sealed bytes, free of charge, no new draw.

    `run` does it by itself at each round. The ledger's head is proven anew where the coordinator has forgotten later
    ones, and a withdrawal that it has forgotten is told again.
    """
    from dataclasses import asdict

    from site_agent.decide.airlock import approval

    names = [study] if study else sorted({hold.study for hold in desk.ledger.holds()})
    if not names:
        raise UsageRefusal("a study must be named, or have releases here", given="none")
    settled = {name: approval.resend(desk, name, dry_run=dry_run) for name in names}
    mended = [one for found in settled.values() for one in found.mended]
    left = [one for found in settled.values() for one in found.left]
    answer: dict[str, Any] = {
        "mended": [asdict(one) for one in mended],
        "left": [asdict(one) for one in left],
        "proven": sorted(name for name, found in settled.items() if found.proven),
        "dry_run": dry_run,
    }

    what = "dry run, nothing sent" if dry_run else f"{len(mended)} mended, {len(left)} left"
    cells = [
        (one.study, one.wave, one.release_id[:8], one.what, state)
        for ones, state in ((mended, "mended"), (left, "found" if dry_run else "left"))
        for one in ones
    ]
    return VerbAnswer(
        answer,
        screen.heading("Held against the coordinator's word", what),
        *(
            f"The ledger's head was proven anew ({name}): the coordinator had forgotten later ones."
            for name in answer["proven"]
        ),
        tabled(("study", "wave", "release", "what", ""), cells, right=("wave",))
        if cells
        else "The coordinator has everything that it acknowledged, and says so.",
        *(screen.note(f"{one.release_id[:8]}: {one.why}") if one.why else None for one in left),
        screen.next_step("site-agent resend" if dry_run and left else "site-agent status"),
    )


@verb(app)
def log(
    desk: Desk,
    against: Annotated[
        Path | None,
        typer.Option("--against", exists=True, dir_okay=False, help="A signed head that somebody else was shown."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="Write the head, for others to check.")
    ] = None,
) -> VerbAnswer:
    """The coordinator's log as it is now: that it only grew, that it holds this site's releases, and its signed head.

    Two heads that do not prove each other are two histories, each under the coordinator's signature.
    """
    from dataclasses import asdict

    from shared.base.keys import write_private
    from site_agent.decide import reconciliation

    replies = desk.replies
    if replies is None:
        raise UsageRefusal(
            "the coordinator's key must be pinned to check its log",
            given="no certificates/witness.pub",
            next_step="Restore it from a backup, or ask the study lead for a new invitation.",
        )
    found: tuple[reconciliation.Discrepancy, ...] = ()
    with desk.egress() as egress:
        answers = {name: egress.held(name) for name in sorted({hold.study for hold in desk.ledger.holds()})}
        found = reconciliation.watch(desk, egress, answers, today())
        checked = egress.watch()
        if checked is None:
            raise UnknownMethod(
                "the coordinator must show its log", given="none of it, or an older version", next_step="Update it."
            )
        agrees = None
        if against is not None:
            agrees = egress.one_log_with(_read(against))
    restored = [asdict(one) for one in replies.restorations()]
    answer: dict[str, Any] = {
        "size": checked.head.size,
        "root": checked.head.root,
        "day": checked.head.day,
        "unproven": [asdict(one) for one in found],
        "restored": restored,
        "against": agrees,
        "head": checked.envelope.decode(),
    }
    if out is not None:
        write_private(out, checked.envelope + b"\n")

    grew = "It only grew since this site first saw it, and holds every release of this site."
    back = "It was put back from a backup to {} entries on {}: {}."
    return VerbAnswer(
        answer,
        screen.heading("The coordinator's log", f"{checked.head.size} entries on {checked.head.day} (UTC)"),
        screen.settings([("root", checked.head.root)]),
        f"Not proven: {reconciliation.sentence(found)}." if found else grew,
        *(screen.note(back.format(one["size"], one["day"], one["reason"] or "no reason told")) for one in restored),
        f"It is the log of {agrees} entries that {against} is of." if agrees is not None else None,
        screen.next_step("site-agent resend" if found else "site-agent status"),
        code=IntegrityRefusal.exit_code if found else 0,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise DataFileRefusal(f"{path.name} must be readable", given=error.strerror or "an error") from None


@verb(outbox_app, "export", noted="outbox export")
def outbox_export(desk: Desk, out: CourierFile, dry_run: Dry = False) -> VerbAnswer:
    """Write what waits for the coordinator into one encrypted file, for a courier. Only where this site has no line."""
    from shared.errors import Refusal
    from shared.plans.invitation import Invitation
    from site_agent.desk import courier
    from site_agent.identity import identity, witness_key

    config = _carried(desk)
    carried = courier(config)
    for digest in carried.offers():
        desk.require_running()
        hold = next((one for one in desk.outbox.list() if one.bundle_sha256 == digest), None)
        try:  # what was approved when it was put here must be so still
            if hold is None or hold.state not in ("approved", "delivered"):
                raise StateRefusal(
                    "a release must be approved to be carried", given="none" if hold is None else hold.state
                )
            desk.ledger.require_plan(hold)
        except Refusal:
            carried.drop(digest)
    if config.certificate.exists():
        shown = identity(config)
    else:
        invited = Invitation.from_bytes(config.invitation.read_bytes())
        shown = (invited.bootstrap_cert_pem, invited.bootstrap_key_pem)
    header, calls, size = carried.export(
        out,
        coordinator=config.coordinator,
        site=config.site,
        identity=shown,
        recipient=witness_key(config),
        dry_run=dry_run,
    )
    answer = {
        "file": str(out),
        "number": header.number,
        "calls": [{"method": one.method, "bundle": one.bundle is not None} for one in calls],
        "bytes": size,
        "dry_run": dry_run,
    }
    return VerbAnswer(
        answer,
        screen.heading(
            f"For {config.coordinator}", "dry run, nothing written" if dry_run else f"{size:,} bytes in {out}"
        ),
        "\n".join(f"  {_WORDS.get(one.method, one.method)}" for one in calls)
        or "  Nothing waits; it only asks for news.",
        "Encrypted to the coordinator's pinned key; nobody who carries it can read it.",
        screen.next_step("coordinator import FILE   (there)", "coordinator post-box SITE FILE   (there)"),
    )


@verb(outbox_app, "import", noted="outbox import")
def outbox_import(
    desk: Desk,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What coordinator post-box wrote.")],
    dry_run: Dry = False,
) -> VerbAnswer:
    """Take the coordinator's answers that a courier has brought; each is verified before anything is done with it."""
    from shared.releases.courier import PostBox
    from site_agent.desk import courier
    from site_agent.identity import witness_key

    config = _carried(desk)
    box = PostBox.read(file, key=witness_key(config), coordinator=config.coordinator, site=config.site)
    taken = courier(config).take(box, dry_run=dry_run)
    if taken.heads and not dry_run:
        with desk.egress() as egress:
            for envelope in taken.heads:
                egress.anchor(envelope)
    answer = {
        "number": taken.number,
        "day": taken.day,
        "new": taken.new,
        "answered": [{"method": method, "refused": code} for method, code in taken.answered],
        "waiting": taken.waiting,
        "dry_run": dry_run,
    }
    lines = [f"  {_WORDS.get(method, method)}: {code or 'answered'}" for method, code in taken.answered]
    return VerbAnswer(
        answer,
        screen.heading(f"From {config.coordinator}", f"post-box of {taken.day}"),
        "\n".join(lines) or "  No answer to a call of this site; plans and holdings are fresh.",
        screen.next_step(
            "site-agent join"
            if not config.certificate.exists()
            else "site-agent run --once   (goes on with what waited)"
        ),
    )


_WORDS = {
    "Enrol": "asks to join",
    "Anchor": "has the ledger's head witnessed",
    "Offer": "brings a release",
    "Withdraw": "takes a release back",
    "RevokeStanding": "ends a standing approval",
    "FetchPlan": "asks for a plan",
    "Status": "asks what the coordinator holds",
    "Membership": "says and asks who takes part",
    "Authorities": "asks for the authorities",
    "Renew": "asks for its next certificate",
    "ReportGap": "reports what the coordinator lacks",
    "Watch": "asks for entries of the log",
    "Growth": "asks for a proof of the log",
}


def _carried(desk: Desk) -> SiteConfig:
    if not desk.config.courier:
        raise StateRefusal(
            "a site must have no line to send by courier",
            given="courier = false in site.toml",
            next_step="site-agent run sends by itself; set courier = true in site.toml where the line is gone.",
        )
    return desk.config
