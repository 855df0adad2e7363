"""The first run on the page: a site made from an invitation, and the request to join its coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from shared.errors import DataFileRefusal, PassphraseRefusal, UsageRefusal
from site_agent.show.page.frame import Frame

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request

    from shared.base.keys import SigningKey
    from site_agent.desk import Desk
    from site_agent.show.page.access import Session
    from site_agent.show.page.language import Language

__all__ = ["Entering"]

PEOPLE = 3
"""Approvers that the form of the first run has room for; more are added later, by the signatures of these."""


class Entering(Frame):
    """First run and joining."""

    def start(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        """Start page, by the folder's state: no site yet, a site awaiting the study lead, or one that has joined."""
        made = (desk.home / "site.toml").exists()
        values: dict[str, Any] = {
            "home": desk.home,
            "made": made,
            "joined": made and desk.config.certificate.exists(),
            "fingerprint": desk.release_key.public.fingerprint if made else "",
            "coordinator": desk.config.coordinator if made else "",
            "authority": desk.config.ca_fingerprint if made else "",
            "asked": request.query_params.get("done", "") == "waiting",
            "people": range(1, PEOPLE + 1),
        }
        return self.draw("start.html", desk, session, lang, here="/start", address="/start", **values)

    def make(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Make folder and keys from an invitation's file on this machine."""
        from shared.base.keys import SigningKey, require_length
        from site_agent.decide.joining import first_run

        people = [
            (form.get(f"name{k}", "").strip(), form.get(f"passphrase{k}", ""), form.get(f"again{k}", ""))
            for k in range(1, PEOPLE + 1)
        ]
        people = [person for person in people if any(person)]
        names = [name for name, _, _ in people]
        if len({*names}) != len(names):
            raise UsageRefusal("approvers must be different people", given="one name twice")
        passphrases = {name: passphrase for name, passphrase, _ in people}
        place = Path(form.get("invitation", "").strip()).expanduser()
        if not place.is_file():
            raise DataFileRefusal("the invitation must be a file on this machine", given="none of that name")
        invited = first_run.invitation_of(place, self.today())
        config = first_run.intended(desk.home, invited, names, courier=form.get("courier") == "yes")
        for _, passphrase, again in people:
            if passphrase != again:
                raise PassphraseRefusal("a new passphrase must be typed the same twice", given="two that differ")

        def chosen(name: str) -> str:
            require_length(passphrases[name])
            return passphrases[name]

        def opened(path: Path, name: str) -> SigningKey:
            return SigningKey.load(path, passphrases[name])

        first_run.make(config, invited, opened=opened, chosen=chosen)
        return "/start"

    def join(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Ask to join, or fetch the certificate once the study lead has accepted."""
        from site_agent.decide.joining import first_run

        asked = first_run.ask(desk, self.today())
        return f"/start?done={'joined' if asked.state == 'joined' else 'waiting'}"
