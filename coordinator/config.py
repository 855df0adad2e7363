"""coordinator.toml: one file in the coordinator's home folder, one frozen value in the program.

Only what differs between installations is a setting. What protects people (the plan, its floors, its signatures) is
not, and an unknown key is refused with the nearest known one, so that a mistyped setting never silently falls back.
The store's address may hold a password: it is left out of every text form.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from shared.base.canonical import closed
from shared.errors import ConfigRefusal, ParameterError, StateRefusal

__all__ = [
    "FILE_NAME",
    "HOME_VARIABLE",
    "STORE_VARIABLE",
    "AnalysisSettings",
    "CoordinatorConfig",
    "LogSettings",
    "Quotas",
    "WebConfig",
    "default_home",
]

FILE_NAME = "coordinator.toml"
HOME_VARIABLE = "TRIBUTARY_COORDINATOR_HOME"
STORE_VARIABLE = "TRIBUTARY_STORE"


def default_home() -> Path:
    """Default home folder without ``--home``: the environment's word, else ./coordinator-home."""
    return Path(os.environ.get(HOME_VARIABLE) or "coordinator-home")


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Quotas of a coordinator: bytes stored for others, how long they are kept, and rates of calls.

    Args:
        quarantine: bytes of one site's refused bundles; above it the oldest are deleted, their digests and reasons not.
        quarantine_days: days after which the bytes of a refused bundle are deleted.
        staging: bytes of one site's unfinished uploads; a newer upload displaces the oldest.
        anchors: bytes of one site's signed ledger heads; a site at its quota is refused.
        answers: bytes of all stored answers to analysts, a quarter of it for those that one token was first to ask;
            above it the oldest are deleted. Their lines of the record stay, and the question can be asked again.
        answer_days: days after which an answer is deleted.
        estimates: bytes of cached estimates of sites; above it those whose question was least recently asked are
            deleted.
        calls: calls a minute of one site.
        anchor_calls: ledger heads a minute of one site.
        refused_a_day: releases of one site that may be refused for their content in a day.
    Raises: ParameterError, at construction.
    """

    quarantine: int = 1 << 30
    quarantine_days: int = 30
    staging: int = 1 << 30
    anchors: int = 128 << 20
    answers: int = 2 << 30
    answer_days: int = 400
    estimates: int = 256 << 20
    calls: int = 1200
    anchor_calls: int = 120
    refused_a_day: int = 100

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ParameterError(f"{name} must be a whole number of at least 1", given=f"{value}")


@dataclass(frozen=True, kw_only=True)
class AnalysisSettings:
    """Rate limits of analysts' questions, and the resources that one question may use.

    Args:
        rate: sustained rate of one token, in questions a minute; 0 for no limit.
        burst: questions that it may ask at once after a pause.
        at_once: questions that are computed at the same time, each in a process; further ones wait, and none of a
            token waits for another token's.
        memory: bytes that a question may take.
        cpu: seconds of computing that a question may take.
        a_day: questions that one token may ask in a day: each is a line of the record for good; 0 for no limit.
        compute: ``dask://host:port`` of a cluster that computes answers; blank for processes of this machine.
    """

    rate: int = 600
    burst: int = 100
    at_once: int = 2
    memory: int = 2 << 30
    cpu: int = 240
    a_day: int = 20_000
    compute: str = ""


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """Settings of the service's log: the table ``[logging]``.

    Args:
        format: ``text``, or ``json``: one object a line.
        level: the least level that is written: ``debug``, ``info``, ``warning`` or ``error``.
        file: path of the log file, opened anew when it was moved away; blank for stderr.
    Raises: ConfigRefusal, at construction.
    """

    format: str = "text"
    level: str = "info"
    file: str = ""

    def __post_init__(self) -> None:
        for key, known in (("format", ("text", "json")), ("level", ("debug", "info", "warning", "error"))):
            if getattr(self, key) not in known:
                raise ConfigRefusal(
                    f"[logging] {key} must be {', '.join(known[:-1])} or {known[-1]}", given=repr(getattr(self, key))
                )
        if not isinstance(self.file, str):
            raise ConfigRefusal("[logging] file must be a path", given=type(self.file).__name__)


def _must(holds: bool, rule: str, given: object) -> None:
    if not holds:
        raise ConfigRefusal(rule, given=f"{given}", next_step=f"Correct {FILE_NAME}.")


def _require_address(name: str, text: str) -> None:
    host, _, port = text.rpartition(":")
    good = bool(host) and not set(host) & set(" /@") and port.isascii() and port.isdigit()
    _must(good and 0 <= int(port) < 65536, f"{name} must be host:port", repr(text))


@dataclass(frozen=True, kw_only=True)
class WebConfig:
    """The section ``[web]``: analysts are answered over HTTPS as well, programs and browsers.

    Args:
        address: ``host:port`` that they dial; the server binds this port beside `CoordinatorConfig.listen`.
        certificate, key: PEM files in the home folder, or with their whole path, that browsers believe; both blank for
            the coordinator's own certificate, which programs believe that have the study's authority.
        issuer, client_id: of the OpenID Connect provider by which people sign in; both blank for tokens alone.
        client_secret: a file that holds the secret; blank for a client that has none.
        role_claim, studies_claim: claims of its ID tokens that name a person's role and studies.
    Raises: ConfigRefusal, at construction.
    """

    address: str
    certificate: str = ""
    key: str = ""
    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    role_claim: str = "tributary_role"
    studies_claim: str = "tributary_studies"

    def __post_init__(self) -> None:
        for item in fields(self):
            text = getattr(self, item.name)
            _must(isinstance(text, str), f"web.{item.name} must be text", type(text).__name__)
        _require_address("web.address", self.address)
        both = bool(self.certificate) == bool(self.key)
        _must(both, "web.certificate and web.key must be named together", "one of them")
        _must(bool(self.issuer) == bool(self.client_id), "web.issuer and web.client_id must be named together", "one")
        secure = self.issuer.startswith(("https://", "http://127.0.0.1:")) or not self.issuer
        _must(secure, "web.issuer must be an https address", repr(self.issuer))

    @classmethod
    def from_table(cls, given: Any) -> WebConfig:
        """Read the section. Raises: ConfigRefusal."""
        if not isinstance(given, Mapping) or "address" not in given:
            raise ConfigRefusal("web must be a section with an address", given=f"{type(given).__name__}")
        closed(given, {item.name for item in fields(cls)}, where="[web]", refusal=ConfigRefusal)
        return cls(**given)

    def to_toml(self) -> str:
        """The section."""
        return f"""
[web]                  # analysts over HTTPS: programs, and people with a browser
address = {_quoted(self.address)}      # host:port that they dial
certificate = {_quoted(self.certificate)}        # PEM file that browsers believe; empty: the coordinator's own
key = {_quoted(self.key)}                # its key, another PEM file
issuer = {_quoted(self.issuer)}             # OpenID Connect provider by which people sign in; empty: tokens alone
client_id = {_quoted(self.client_id)}          # as it knows this coordinator
client_secret = {_quoted(self.client_secret)}      # file that holds its secret; empty: none
role_claim = {_quoted(self.role_claim)}          # claim that names the role: analyst, lead, auditor or reader
studies_claim = {_quoted(self.studies_claim)}    # claim that lists the studies
"""


def _whole(default: int, least: int, most: int) -> Any:
    """A setting that is a whole number from `least` to `most`."""
    return field(default=default, metadata={"range": (least, most)})


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig:
    """The settings of one coordinator.

    Args:
        home: the folder that holds everything else.
        name: the coordinator's id; plans name it as their only recipient.
        listen: ``host:port`` the server binds.
        address: ``host:port`` the sites dial, as it stands in their invitations.
        names: DNS names and IP addresses in the server's certificate.
        store: SQLAlchemy URL; empty for SQLite in the home folder. `STORE_VARIABLE` in the environment wins.
        bundles: ``s3://bucket/prefix`` of an object store that keeps accepted bundles (`ObjectPlace`); blank for a
            folder of the home.
        threshold: lead signatures a plan must carry.
        invitation_days: days an invitation may be used.
        max_bundle_mb: most megabytes of one release.
        workers: threads that answer sites, and as many that answer analysts.
        connections: most connections to either port at once.
        connections_per_address: most of one address; sites that share one (a gateway) need as many together.
        analysts: ``host:port`` that analysts dial; the server binds this port beside `listen`. Blank: no analyst is
            answered, and the port stays closed.
        analyst_rate: questions a minute that one analyst may ask.
        analyst_burst: questions that one analyst may ask at once.
        analyst_places: questions that are computed at the same time, each in a process of its own; no analyst has all
            of them, and where none comes free for half a second there are as many spare ones.
        analyst_memory_mb: most megabytes that one question may take.
        analyst_seconds: most seconds of computing that one question may take.
        analyst_day: questions that one analyst may ask in a day; the record of each is kept for good.
        compute: ``dask://host:port`` of the scheduler of a cluster that computes answers; blank for processes of this
            machine.
        site_rate: calls a minute of one site.
        site_staging_mb: megabytes of one site's bundles that are under way; one of `max_bundle_mb` always may be.
        site_refused_mb: megabytes of one site's refused bundles that are kept; of more, the oldest are deleted.
        refused_days: days for which they are kept. Their digests and reasons are kept for good.
        site_heads_mb: megabytes of the signed heads of one site's ledger; they are kept for good.
        answers_mb: megabytes of answers that are kept, a quarter of them first asked by one analyst.
        answer_days: days for which they are kept.
        estimates_mb: megabytes of sites' estimates that are kept, so that no process works them out again.
        health: ``host:port`` of ``/healthz``, ``/readyz`` and ``/metrics``, in plain HTTP; blank: none.
        health_grpc: ``host:port`` of gRPC's standard health service, in plain; blank: none.
        drain_seconds: seconds for which new calls are still taken once the service is told to end and ready no more.
        grace_seconds: seconds that running calls then have.
        logging: settings of the service's log.
        web: settings of the HTTPS server for analysts; None for none.
    Raises: ConfigRefusal, at construction.

    >>> CoordinatorConfig(home=Path("."), name="tributary", address="hub.example.org:8443").max_bundle
    268435456
    """

    home: Path
    name: str
    address: str
    listen: str = "0.0.0.0:8443"
    names: tuple[str, ...] = ()
    store: str = field(default="", repr=False)
    bundles: str = ""
    threshold: int = _whole(1, 1, 5)
    invitation_days: int = _whole(14, 1, 90)
    max_bundle_mb: int = _whole(256, 1, 4096)
    workers: int = _whole(16, 1, 256)
    connections: int = _whole(512, 8, 20_000)
    connections_per_address: int = _whole(128, 2, 20_000)
    analysts: str = ""
    analyst_rate: int = _whole(600, 1, 1_000_000)
    analyst_burst: int = _whole(100, 1, 1_000_000)
    analyst_places: int = _whole(2, 1, 256)
    analyst_memory_mb: int = _whole(2048, 256, 1 << 20)
    analyst_seconds: int = _whole(240, 1, 300)
    analyst_day: int = _whole(20_000, 1, 1_000_000)
    compute: str = ""
    site_rate: int = _whole(1200, 60, 1_000_000)
    site_staging_mb: int = _whole(1024, 1, 1 << 20)
    site_refused_mb: int = _whole(1024, 1, 1 << 20)
    refused_days: int = _whole(30, 1, 3650)
    site_heads_mb: int = _whole(128, 1, 1 << 20)
    answers_mb: int = _whole(2048, 1, 1 << 20)
    answer_days: int = _whole(400, 1, 36_500)
    estimates_mb: int = _whole(256, 1, 1 << 20)
    health: str = ""
    health_grpc: str = ""
    drain_seconds: int = _whole(0, 0, 300)
    grace_seconds: int = _whole(20, 0, 300)
    logging: LogSettings = LogSettings()
    web: WebConfig | None = None

    def __post_init__(self) -> None:
        must = _must
        plain = self.name.isascii() and self.name.replace("-", "").replace("_", "").isalnum()
        must(plain and len(self.name) <= 64, "name must be a plain word (letters, digits, - and _)", repr(self.name))
        may = [key for key in ("analysts", "health", "health_grpc") if getattr(self, key)]
        for key in ("address", "listen", *may):
            _require_address(key, getattr(self, key))
        for item in fields(self):
            if item.metadata:
                value, (least, most) = getattr(self, item.name), item.metadata["range"]
                whole = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
                must(whole, f"{item.name} must be a whole number in {least}..{most}", repr(value))
        must(
            not self.store or "://" in self.store,
            "store must be a database URL",
            "another form (not shown: it may hold a password)",
        )
        if self.bundles:
            from coordinator.store.bundles.objects import ObjectPlace

            ObjectPlace.of(self.bundles)

    @property
    def analysts_listen(self) -> str:
        """``host:port`` to bind for analysts: the host of `listen`, the port of `analysts`; blank for none."""
        return f"{self.listen.rpartition(':')[0]}:{self.analysts.rpartition(':')[2]}" if self.analysts else ""

    @property
    def analysis_settings(self) -> AnalysisSettings:
        """Rate limits of analysts' questions, and the resources that one question may use."""
        return AnalysisSettings(
            rate=self.analyst_rate,
            burst=self.analyst_burst,
            at_once=self.analyst_places,
            memory=self.analyst_memory_mb << 20,
            cpu=self.analyst_seconds,
            a_day=self.analyst_day,
            compute=self.compute,
        )

    @property
    def web_settings(self) -> dict[str, str] | None:
        """Settings of the HTTPS server: its listening address, files and identity provider, and the gRPC address.

        None for no server.
        """
        if self.web is None:
            return None
        listen = f"{self.listen.rpartition(':')[0]}:{self.web.address.rpartition(':')[2]}"
        files = {name: getattr(self.web, name) for name in ("certificate", "key", "client_secret")}
        plain = {
            name: getattr(self.web, name) for name in ("address", "issuer", "client_id", "role_claim", "studies_claim")
        }
        return {
            "listen": listen,
            "analysts": self.analysts,
            **plain,
            **{name: f"{self.home / text}" if text else "" for name, text in files.items()},
        }

    @property
    def max_bundle(self) -> int:
        """Most bytes of one release."""
        return self.max_bundle_mb << 20

    @property
    def quotas(self) -> Quotas:
        """Quotas of one site and of one token."""

        return Quotas(
            quarantine=self.site_refused_mb << 20,
            quarantine_days=self.refused_days,
            staging=max(self.site_staging_mb, self.max_bundle_mb) << 20,
            anchors=self.site_heads_mb << 20,
            answers=self.answers_mb << 20,
            answer_days=self.answer_days,
            estimates=self.estimates_mb << 20,
            calls=self.site_rate,
        )

    @classmethod
    def load(cls, home: Path) -> CoordinatorConfig:
        """Read `home`/coordinator.toml. Raises: StateRefusal (no such home), ConfigRefusal."""
        path = home / FILE_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise StateRefusal(
                f"the coordinator's home must hold {FILE_NAME}",
                given=f"{home}",
                next_step=f"Run coordinator init, or point --home or {HOME_VARIABLE} at the right folder.",
            ) from None
        return cls.from_toml(text, home=home)

    @classmethod
    def from_toml(cls, text: str, *, home: Path) -> CoordinatorConfig:
        """Read the settings from TOML text. Raises: ConfigRefusal."""
        try:
            given: Mapping[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigRefusal(f"{FILE_NAME} must be TOML", given=f"{error}") from None
        known = {item.name for item in fields(cls)} - {"home"}
        closed(given, known, where=FILE_NAME, refusal=ConfigRefusal)
        values = dict(given)
        web = WebConfig.from_table(values.pop("web")) if "web" in values else None
        for key in ("name", "address", "listen", "store", "bundles", "analysts", "health", "health_grpc"):
            if not isinstance(values.get(key, ""), str):
                raise ConfigRefusal(f"{key} must be text", given=type(values[key]).__name__)
        for key in ("name", "address"):
            if key not in values:
                raise ConfigRefusal(f"{FILE_NAME} must set {key}", given="none")
        names = values.pop("names", [])
        if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
            raise ConfigRefusal("names must be a list of DNS names and IP addresses", given=type(names).__name__)
        log = values.pop("logging", {})
        if not isinstance(log, dict):
            raise ConfigRefusal("[logging] must be a table", given=type(log).__name__)
        closed(log, set(LogSettings.__dataclass_fields__), where="[logging]", refusal=ConfigRefusal)
        if os.environ.get(STORE_VARIABLE):
            values["store"] = os.environ[STORE_VARIABLE]
        return cls(home=home, names=tuple(names), web=web, logging=LogSettings(**log), **values)

    def to_toml(self) -> str:
        """The commented file that `load` reads back."""
        names = ", ".join(_quoted(name) for name in self.names)
        return f"""\
# Settings of this coordinator. An unknown key is refused. Restart `coordinator serve` after a change.

name = {_quoted(self.name)}             # plans name it as their only recipient; a change voids every plan
address = {_quoted(self.address)}       # what the sites dial; it stands in their invitations
listen = {_quoted(self.listen)}         # what the server binds
names = [{names}]       # DNS names and IP addresses in the server's certificate
store = {_quoted(self.store)}              # database URL; empty: SQLite here; {STORE_VARIABLE} wins
bundles = {_quoted(self.bundles)}            # s3://bucket/prefix of an object store; empty: bundles/ here
threshold = {self.threshold}            # lead signatures a plan must carry
invitation_days = {self.invitation_days}     # how long an invitation may be used
max_bundle_mb = {self.max_bundle_mb}      # largest release
workers = {self.workers}             # threads that answer sites, and as many that answer analysts
connections = {self.connections}        # connections to either port at once
connections_per_address = {self.connections_per_address}      # of one address
analysts = {_quoted(self.analysts)}           # host:port that analysts dial; empty: none is answered
analyst_rate = {self.analyst_rate}       # questions a minute of one analyst
analyst_burst = {self.analyst_burst}      # questions at once of one analyst
analyst_places = {self.analyst_places}       # questions computed at the same time, each in a process
analyst_memory_mb = {self.analyst_memory_mb} # most memory of one question
analyst_seconds = {self.analyst_seconds}    # most computing of one question
analyst_day = {self.analyst_day}      # questions a day of one analyst; the record of them is kept for good
compute = {_quoted(self.compute)}            # dask://host:port of a cluster that computes answers; empty: this machine
site_rate = {self.site_rate}         # calls a minute of one site
site_staging_mb = {self.site_staging_mb}   # bundles of one site that are under way
site_refused_mb = {self.site_refused_mb}   # refused bundles of one site; of more, the oldest are deleted
refused_days = {self.refused_days}        # and those that are older; their digests and reasons stay
site_heads_mb = {self.site_heads_mb}      # signed heads of one site's ledger; these are kept for good
answers_mb = {self.answers_mb}        # answers that are kept, a quarter of them first asked by one analyst
answer_days = {self.answer_days}        # for so long; the record of the questions stays
estimates_mb = {self.estimates_mb}      # sites' estimates that are kept, so that no process works them out again
health = {_quoted(self.health)}             # host:port of /healthz, /readyz, /metrics (127.0.0.1:9464); empty: none
health_grpc = {_quoted(self.health_grpc)}        # host:port of gRPC's health service; empty: none
drain_seconds = {self.drain_seconds}        # after SIGTERM new calls are still taken for so long, and readyz is red
grace_seconds = {self.grace_seconds}       # and running ones then have so long

[logging]
format = {_quoted(self.logging.format)}         # text, or json: one object a line
level = {_quoted(self.logging.level)}          # debug, info, warning or error
file = {_quoted(self.logging.file)}               # opened anew when it was moved away (logrotate); empty: stderr
{self.web.to_toml() if self.web else ""}"""


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)
