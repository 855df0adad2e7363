"""Registered keys of approvers, and their signed statement that two studies have no person in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shared.errors import ApprovalRefusal, ParameterError
from site_agent.ledger.decisions import require_registered

if TYPE_CHECKING:
    from shared.base.keys import SigningKey
    from site_agent.desk import Desk

__all__ = ["registered", "tell_apart"]

OpenKey = Callable[[], "SigningKey"]


def registered(desk: Desk, name: str, open_key: OpenKey) -> SigningKey:
    """The opened key of an approver. Raises: ApprovalRefusal, unless it is the registered one."""
    key = open_key()
    require_registered(desk.config.approvers, name, key.public.hex)
    return key


def tell_apart(
    desk: Desk, study: str, other: str, *, by: Mapping[str, OpenKey], reason: str, dry_run: bool = False
) -> tuple[float, float]:
    """Sign, as approvers, that no person is in both of two studies; returns the site's total ε before and after.

    Args:
        by: name of each signer to a function that opens the key: as many as a release needs here, deputies not counted.
    Raises: ApprovalRefusal (too few), ParameterError (one study, or one that is not known here; no reason),
        StateRefusal (said already).
    """
    from site_agent.decide.keys import keyring, needed

    least, deputies = needed(desk), keyring(desk).deputies
    count = len(set(by) - set(deputies))
    if count < least:
        raise ApprovalRefusal(
            f"that two studies are about different people must be signed by {least} approver(s), deputies apart",
            given=f"{count}",
            next_step="Repeat --as for each of them; each types their own passphrase.",
        )
    known = {*desk.config.studies, *desk.plans.studies(), *(hold.study for hold in desk.ledger.holds())}
    unknown = sorted({study, other} - known)
    if unknown:
        raise ParameterError("both must be studies of this site", given=repr(unknown[0]), next_step="site-agent status")
    delta = desk.config.budget.delta
    before = desk.ledger.site_total(delta)
    if not dry_run:
        keys = {name: registered(desk, name, open_key) for name, open_key in by.items()}
        name, *others = keys
        beside = {one: keys[one] for one in others}
        with desk.locked():
            desk.ledger.tell_apart(study, other, name=name, reason=reason, key=keys[name], beside=beside)
    return before, desk.ledger.site_total(delta)
