"""Setting up and serving: ``init``, ``passphrase``, ``serve``."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import DryRun, app, labelled, lead_keys, open_store, verb
from coordinator.config import FILE_NAME, STORE_VARIABLE, CoordinatorConfig, WebConfig
from shared.base.canonical import sha256_hex
from shared.errors import ParameterError, StateRefusal
from shared.terminal import VerbAnswer, console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.services.authority import Authority

LOCAL_HOSTS = ("127.0.0.1", "0.0.0.0", "localhost", "[::]")
"""Listening addresses that a browser on the same machine can reach as localhost."""
Database = Annotated[
    str, typer.Option("--store", help=f"URL of the database; SQLite in the home folder, or {STORE_VARIABLE}.")
]
Bundles = Annotated[
    str, typer.Option("--bundles", help="s3://bucket/prefix of an object store; a folder of the home if left out.")
]

__all__ = ["init", "passphrase", "serve"]

address_option = partial(typer.Option, rich_help_panel="Addresses")


def _places() -> int:
    """Number of questions that a new coordinator computes at a time: its available cores, from 2 to 8.

    A question of many sites is split among several places, so that a larger machine is used. Each place may use
    `analyst_memory_mb`, and all of them at worst twice the sum, for which the available memory must have room.
    """
    from shared.base.process import available_cores, available_mb

    room = (available_mb() or 0.0) / (2 * CoordinatorConfig.analyst_memory_mb)
    return max(2, min(available_cores(), int(room), 8))


@verb(app, rich_help_panel="Set up")
def init(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name", help="The coordinator's id; plans name it.")] = "tributary-hub",
    address: Annotated[str, address_option("--address", help="host:port that sites dial.")] = "localhost:8443",
    listen: Annotated[
        str, address_option("--listen", help="host:port to bind; the port of --address if left out.")
    ] = "",
    san: Annotated[list[str] | None, address_option("--san", help="Further DNS name or IP in the certificate.")] = None,
    lead: Annotated[list[str] | None, typer.Option("--lead", help="Name of a lead's key; repeat for several.")] = None,
    threshold: Annotated[int, typer.Option("--threshold", help="Lead signatures that a plan must carry.")] = 1,
    analysts: Annotated[str, address_option("--analysts", help="host:port that analysts dial; none if left out.")] = "",
    over_https: Annotated[str, address_option("--web", help="host:port that browsers dial; none if left out.")] = "",
    database: Database = "",
    bundles: Bundles = "",
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Make the home folder: settings, certificate authority, server certificate and the leads' keys."""
    home: Path = context.obj
    config = CoordinatorConfig(
        home=home,
        name=name,
        address=address,
        listen=listen or f"0.0.0.0:{address.rpartition(':')[2]}",
        names=tuple(dict.fromkeys([address.rpartition(":")[0].strip("[]"), *(san or [])])),
        threshold=threshold,
        analysts=analysts,
        web=WebConfig(address=over_https) if over_https else None,
        store=database,
        bundles=bundles,
        analyst_places=_places(),
    )
    leads = list(dict.fromkeys(lead or ["lead"]))
    _require_leads(leads, threshold)
    # What the environment names is used as any other verb would, and stays out of the settings: it may hold a password.
    used = replace(config, store=os.environ.get(STORE_VARIABLE) or database)
    _require_new(used)
    made: dict[str, Any] = {"home": str(home), "name": name, "address": address, "names": config.names}
    if dry_run:
        return VerbAnswer({**made, "created": False}, f"would create {home} for {name} at {address}")
    from coordinator.services.authority import Authority, unattended
    from shared.base import at_rest
    from shared.base.keys import write_private
    from shared.base.passphrases import chosen

    passphrases = {who: chosen(who, optional=True) for who in leads}  # first: one that is too short leaves no folder
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    fingerprints = {who: _lead_key(home / "keys", who, passphrase) for who, passphrase in passphrases.items()}
    unlocked = [who for who, passphrase in passphrases.items() if passphrase is None]
    # The settings are written last: an init that was interrupted is started again, and takes up its authority.
    there = all((home / "ca" / name).exists() for name in ("ca.key", "ca.pem"))
    authority = Authority.load(home) if there else Authority.create(home, coordinator=name, names=config.names)
    _claim(used, authority)
    write_private(home / FILE_NAME, config.to_toml().encode())
    state, detail, fix = at_rest.finding(unattended(home), home, "coordinator serve")
    made |= {
        "ca_fingerprint": authority.fingerprint,
        "leads": fingerprints,
        "threshold": threshold,
        "passphrase": not unlocked,
        "keys_at_rest": {"state": state, "detail": detail, "fix": fix},
        "created": True,
    }
    return VerbAnswer(
        made,
        (f"{name} is set up in {home}", "bold"),
        labelled(
            ("sites dial", address),
            ("certificate for", ", ".join(config.names)),
            ("CA fingerprint", authority.fingerprint),
            *((f"key of {who}", fingerprint) for who, fingerprint in fingerprints.items()),
        ),
        (f"No passphrase on the key of {', '.join(unlocked)}: whoever reads this folder can sign plans.", "yellow")
        if unlocked
        else None,
        (f"Keys at rest: {detail}. {fix}".rstrip(), "yellow" if state == "warn" else ""),
        ("next: coordinator plan new STUDY", "cyan"),
    )


def _require_new(config: CoordinatorConfig) -> None:
    """Refuse a folder that is a home already, and another one's database; nothing is made. Raises: StateRefusal."""
    home = config.home
    if (home / FILE_NAME).exists():
        raise StateRefusal(
            "the home folder must be new",
            given=f"{home}",
            next_step=f"Edit its {FILE_NAME}, or choose another --home.",
        )
    if not config.store:
        return
    import sqlalchemy as sa

    from coordinator.store.schema.homes import lies_in, require_unused
    from coordinator.store.store import Store

    url = sa.make_url(config.store)
    missing = url.get_backend_name() == "sqlite" and not Path(url.database or "").exists()
    if missing or lies_in(url, home):
        return  # a look at one that is missing would make it
    with closing(Store.open(home, config.store, config.bundles, bring_up=False)) as store:
        store.read(lambda c: require_unused(c, home))


def _claim(config: CoordinatorConfig, authority: Authority) -> None:
    """Try the store and its bundles out, and note both as this home's. Raises: StateRefusal, StorageRefusal."""
    from coordinator.services.health import require_home

    with open_store(config) as store:
        store.bundles.try_out()
        require_home(store, config.home, authority)


def _lead_key(folder: Path, who: str, passphrase: str | None) -> str:
    """Make a lead's key; returns its fingerprint. One of an interrupted init, or of one beside this, is taken up."""
    from shared.base.keys import SigningKey, write_private

    key, path = SigningKey.generate(), folder / f"{who}.pem"
    try:
        key.save(path, passphrase, new=True)
    except StateRefusal:
        key = SigningKey.load(path, passphrase)
    write_private(folder / f"{who}.pub", f"{key.public.hex}\n".encode())
    return key.public.fingerprint


def _require_leads(leads: list[str], threshold: int) -> None:
    """Refuse leads too few to sign, and names that could not name a file or stand in a plan. Raises: ParameterError."""
    from shared.base.canonical import is_word
    from shared.plans.invitation import plain_word_of

    for who in leads:
        if not is_word(who):
            raise ParameterError(
                "a lead's name must be a plain word: ASCII letters, digits, - and _, at most 64",
                given=repr(who),
                next_step=f"For example {plain_word_of(who)!r}. It stands under every plan that they sign.",
            )
    if threshold > len(leads):
        raise ParameterError(
            "there must be at least as many leads as signatures",
            given=f"{len(leads)} and {threshold}",
            next_step="Repeat --lead.",
        )


@verb(app, rich_help_panel="Set up")
def passphrase(
    config: CoordinatorConfig,
    lead: Annotated[str, typer.Argument(help="Name of the lead whose key it is.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Give a lead's key another passphrase, or its first one. The key, and all that it signed, stays the same."""
    from shared.base.passphrases import changed

    known = lead_keys(config)
    if lead not in known:
        raise ParameterError("the lead must have a key here", given=repr(lead), next_step=f"Leads: {', '.join(known)}.")
    key = changed(config.home / "keys" / f"{lead}.pem", lead, dry_run=dry_run)
    answer = {"lead": lead, "fingerprint": key.public.fingerprint, "changed": not dry_run}

    return VerbAnswer(
        answer,
        (f"{'would change' if dry_run else 'changed'} the passphrase of the key of {lead}", "bold"),
        "Copies of the old file, in backups for one, still open as they did.",
    )


def _first_code(config: CoordinatorConfig, web: Mapping[str, str] | None) -> str:
    """One-time code for the first sign-in by a browser on this machine; blank where none is to be offered.

    It is shown on a terminal only, because a service's log can be read by others; and only where analysts have an
    address, which the first person's token file must contain.
    """
    if not web or web["issuer"] or not config.analysts or web["listen"].rpartition(":")[0] not in LOCAL_HOSTS:
        return ""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    from coordinator.services.analysts import Analysts

    with open_store(config) as store:
        return "-".join(secrets.token_hex(2) for _ in range(4)) if Analysts(store).nobody() else ""


@app.command(rich_help_panel="Set up")
def serve(
    context: typer.Context,
    address: Annotated[str, typer.Option("--address", help="host:port to bind, instead of the setting.")] = "",
    analysts: Annotated[
        str, typer.Option("--analysts", help="host:port to bind for analysts, instead of the setting; none: none.")
    ] = "",
    over_https: Annotated[
        str, typer.Option("--web", help="host:port to bind for HTTPS, instead of the setting; none: none.")
    ] = "",
    health: Annotated[str, typer.Option("--health", help="host:port for health and metrics, instead of it.")] = "",
) -> None:
    """Answer sites and analysts, in the foreground, until it is told to stop (SIGTERM, or Ctrl-C)."""
    config = CoordinatorConfig.load(context.obj)
    from coordinator.services.authority import encrypt_keys
    from coordinator.services.collect import server
    from shared.wire.transport import CallLimits

    encrypt_keys(config.home)
    listen = address or config.listen
    host = listen.rpartition(":")[0]
    asked = "" if analysts == "none" else analysts or config.analysts_listen
    web = None if "none" in (analysts, over_https) else config.web_settings
    if over_https not in ("", "none"):
        if web is None:
            raise ParameterError(
                "--web must be of a coordinator that answers over HTTPS",
                given=repr(over_https),
                next_step="Add [web] to coordinator.toml.",
            )
        web |= {"listen": over_https}
    code = _first_code(config, web)
    if web and code:
        web |= {"first_code": sha256_hex(code.encode())}

    def ready(port: int) -> None:
        console().print(f"{config.name} answers on {host}:{port}; sites dial {config.address}; stop with Ctrl-C")
        if asked:
            console().print(f"analysts are answered on {asked}; they dial {config.analysts or asked}")
        if web and config.web:
            console().print(f"and over HTTPS on {web['listen']}: https://{config.web.address}")
            if code:
                place = f"https://127.0.0.1:{web['listen'].rpartition(':')[2]}/sign-in"
                console().print(
                    f"Nobody has been let in yet. In a browser on this machine: {place} with the code {code}"
                )
        sys.stdout.flush()

    def watched(port: int) -> None:
        place = f"{(health or config.health).rpartition(':')[0]}:{port}"
        console().print(f"health and metrics are on http://{place}: /healthz, /readyz, /metrics")
        sys.stdout.flush()

    server.serve(
        config.home,
        listen,
        server.ServerSettings(
            url=config.store,
            bundles=config.bundles,
            max_bundle=config.max_bundle,
            quotas=config.quotas,
            workers=config.workers,
            limits=CallLimits(connections=config.connections, per_address=config.connections_per_address),
            analysts=asked,
            analysis=config.analysis_settings,
            web=web,
            health=health or config.health,
            health_grpc=config.health_grpc,
            log=config.logging,
        ),
        ready=ready,
        watched=watched,
        drain=config.drain_seconds,
        grace=config.grace_seconds,
    )
