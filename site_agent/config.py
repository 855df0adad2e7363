"""site.toml: one file in the site's home folder, one frozen value in the program.

`init` writes it from the invitation, `data add` and `data map` edit it, and a person may. It holds no secret (keys
have files of their own), so it can be shown to anyone at the hospital. Two rules are built in rather than documented:
an unknown key is refused with the nearest known one, and a floor can only be tightened, because the value in force is
the stricter of the plan's and the site's (`Limits.of`).
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from shared.base.canonical import closed
from shared.errors import ConfigRefusal, DataFileRefusal, Refusal, StateRefusal

if TYPE_CHECKING:
    from shared.base.keys import PublicKey
    from shared.plans.plan import Floors

__all__ = ["FILE_NAME", "HOME_VARIABLE", "Edges", "Limits", "Recoding", "SiteConfig", "SiteFloors", "TableSource"]
__all__ += ["default_home"]

FILE_NAME = "site.toml"
HOME_VARIABLE = "TRIBUTARY_SITE_HOME"
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1")
FORMATS = {
    **{".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".pq": "parquet", ".graphml": "graphml"},
    **{".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite", ".sql": "sql"},
}
Format = Literal["csv", "parquet", "graphml", "sqlite", "sql"]
DATABASES = ("sqlite", "sql")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def default_home() -> Path:
    """Default home folder without ``--home``: the environment's word, else ./site-home."""
    return Path(os.environ.get(HOME_VARIABLE) or "site-home")


def frame_key(home: Path, study: str) -> Path:
    """Path of the key of a study's sealed embeddings: the one place that must be kept out of copies of the outbox."""
    return home / "keys" / "frames" / f"{study}.key"


def _must(holds: bool, rule: str, given: object, step: str = f"Correct {FILE_NAME}.") -> None:
    if not holds:
        raise ConfigRefusal(rule, given=f"{given}", next_step=step)


def _plain_word(value: str) -> bool:
    return value.isascii() and value.replace("-", "").replace("_", "").isalnum() and len(value) <= 64


def _must_be_a_table(path: Path, encoding: str, delimiter: str) -> None:
    """A file of this machine that can be read as a table."""
    text = str(path)
    remote = "://" in text or text.startswith(("\\\\", "//")) or ":/" in text[2:]
    _must(not remote, "a table must be a local file", "an address", "Give the path of a file on this machine.")
    _must(
        PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute(),
        "the path of a table must be absolute",
        repr(text),
    )
    kinds = ", ".join(FORMATS)
    suffix = path.suffix.lower()
    step = "Export it as CSV or Parquet, or name a database (site-agent data add -h)."
    if suffix in (".xlsx", ".xls", ".xlsm", ".ods"):
        step = "In the spreadsheet: File, Save as, CSV UTF-8. Semicolons and decimal commas can be read (data map)."
    elif suffix in (".sav", ".dta", ".sas7bdat", ".xpt", ".rds", ".rdata"):
        step = "Export it from there as CSV or Parquet, with the codes, not with the labels."
    given = repr(path.name) if path.name else "a folder"
    if suffix not in FORMATS:
        raise DataFileRefusal(f"a table must end in {kinds}", given=given, next_step=step)
    _must(encoding in ENCODINGS, f"encoding must be one of {', '.join(ENCODINGS)}", repr(encoding))
    _must(len(delimiter) == 1, "delimiter must be one character", f"{len(delimiter)} characters")


def _must_be_in_a_database(path: Path, table: str, database: str) -> None:
    """A table of a SQLite file, or a query with the variable that holds the database's address."""
    kind = _format(path)
    for name, value, of in (("table", table, "sqlite"), ("database", database, "sql")):
        _must(isinstance(value, str), f"{name} must be text", type(value).__name__)
        _must(
            bool(value) == (kind == of),
            f"{name} must be given with {'a SQLite file' if of == 'sqlite' else 'a .sql file'}, and with nothing else",
            f"{'one' if value else 'none'} with a {path.suffix.lower()} file",
            "Run site-agent data add FILE with --table NAME (SQLite) or --database VARIABLE (.sql).",
        )
    # What was given may be the address itself, with its password: it is not repeated.
    _must(
        not database or bool(_VARIABLE.fullmatch(database)),
        "database must be the name of an environment variable that holds the address, never the address itself",
        "something else",
        "Put the address into a variable of the agent's environment, and name the variable.",
    )


def _format(path: Path) -> Format:
    found: Format = FORMATS[path.suffix.lower()]  # type: ignore[assignment]
    return found


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Location of the edge list of a study's network; its other columns are not read.

    Args:
        path: a local file, CSV, Parquet, GraphML, SQLite or a query (.sql) by its name; it is read in place and never
            copied.
        encoding, delimiter: of a CSV file.
        table, database: as of `TableSource`.
        start, end: names in the file of the columns that hold the two persons of an edge, as the node table writes
            them; of a directed network the edge goes from `start` to `end`. GraphML has no such columns.
    Raises: ConfigRefusal, at construction.

    >>> Edges(path=Path("/data/contacts.csv"), start="a", end="b").format
    'csv'
    """

    path: Path
    encoding: str = "utf-8"
    delimiter: str = ","
    start: str = "from"
    end: str = "to"
    table: str = ""
    database: str = ""

    def __post_init__(self) -> None:
        _must_be_a_table(self.path, self.encoding, self.delimiter)
        _must_be_in_a_database(self.path, self.table, self.database)
        _must(
            bool(self.start and self.end) and self.start != self.end,
            "an edge must have two columns",
            f"{self.start!r} and {self.end!r}",
        )

    @property
    def format(self) -> Format:
        """File format, by its name."""
        return _format(self.path)


@dataclass(frozen=True, kw_only=True)
class Recoding:
    """How a column's values in the file become those of the dictionary; `site_agent.records.recoding` does it.

    Args:
        levels: value in the file to level of the dictionary, both as text; blank where it says that nothing is known.
        decimal: ``,`` where the file writes decimals with a comma; blank for a point.
        factor, offset: a number of the file, times `factor`, plus `offset`, is one in the dictionary's unit.
    Raises: ConfigRefusal, at construction.

    >>> Recoding(levels={"m": "1", "w": "0"}).words, Recoding(decimal=",", factor=38.67).words
    ('m is 1, w is 0', 'decimal comma, times 38.67')
    """

    levels: Mapping[str, str] = field(default_factory=dict)
    decimal: Literal["", ","] = ""
    factor: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        texts = isinstance(self.levels, Mapping) and all(isinstance(level, str) for level in self.levels.values())
        _must(texts, "levels must map values of the file to levels, both in quotes", "something else")
        _must(self.decimal in ("", ","), "decimal must be ',' or left out", repr(self.decimal))
        for name in ("factor", "offset"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            _must(number and (name == "offset" or value != 0), f"{name} must be a number, and no factor 0", value)
            object.__setattr__(self, name, float(value))
        object.__setattr__(self, "levels", MappingProxyType(dict(self.levels)))

    @property
    def words(self) -> str:
        """It in a few words; blank where values are taken as they stand."""
        parts = [f"{value} is {level or 'missing'}" for value, level in self.levels.items()]
        parts += ["decimal comma"] if self.decimal else []
        parts += [f"times {self.factor:g}"] if self.factor != 1 else []
        parts += [f"plus {self.offset:g}"] if self.offset else []
        return ", ".join(parts)

    def to_canonical(self) -> dict[str, Any]:
        """Plain values; what is at its default is left out."""
        out: dict[str, Any] = {"levels": dict(self.levels)} if self.levels else {}
        given = {"decimal": self.decimal, "factor": self.factor, "offset": self.offset}
        return out | {name: value for name, value in given.items() if value != getattr(Recoding, name)}


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """Location of a study's table, and the mapping of its columns and values.

    Args:
        path: a local file, CSV, Parquet, GraphML, SQLite or a query (.sql) by its name; it is read in place and never
            copied.
        encoding: of a CSV file; ``utf-8`` also reads a file with a byte order mark.
        delimiter: of a CSV file, one character.
        columns: name in the file to name in the dictionary, where the two differ.
        values: name in the dictionary to how its values are recoded; a column that is not in it is taken as it stands.
        ignore: columns of the file that the study does not use. They are named one by one, so that a new column in
            the hospital's export is noticed instead of dropped.
        edges: of a study of a network, its edge list; a GraphML file holds its own.
        table: of a SQLite file, the table or view that is read.
        database: of a query, the environment variable that holds the database's address
            (`site_agent.records.databases`).
        hospital: of several small hospitals in one table, under one steward's agreement: the column that says whose
            row it is. It is among what the study ignores.
        hospitals: their names in it, all that the agreement has.
    Raises: ConfigRefusal, at construction.

    >>> TableSource(path=Path("/data/cohort.csv"), columns={"SBP": "sbp"}).format
    'csv'
    """

    path: Path
    encoding: str = "utf-8"
    delimiter: str = ","
    columns: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Recoding] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    edges: Edges | None = None
    table: str = ""
    database: str = ""
    hospital: str = ""
    hospitals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_hospitals()
        _must_be_a_table(self.path, self.encoding, self.delimiter)
        _must_be_in_a_database(self.path, self.table, self.database)
        twice = sorted({to for to in self.columns.values() if list(self.columns.values()).count(to) > 1})
        _must(not twice, "a dictionary column must come from one source column", ", ".join(twice))
        both = sorted(set(self.columns) & set(self.ignore))
        _must(not both, "a source column must be mapped or ignored, not both", ", ".join(both))
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        recoded = {name: one for name, one in self.values.items() if one.words}
        object.__setattr__(self, "values", MappingProxyType(recoded))
        if self.edges is None and self.format == "graphml":
            object.__setattr__(self, "edges", Edges(path=self.path))

    def _check_hospitals(self) -> None:
        names = tuple(self.hospitals)
        object.__setattr__(self, "hospitals", names)
        _must(
            bool(self.hospital) == bool(names), "hospital and hospitals must be given together", f"{len(names)} names"
        )
        if not self.hospital:
            return
        differ = len(set(names)) == len(names) and all(name and name == name.strip() for name in names)
        _must(2 <= len(names) <= 1000 and differ, "hospitals must be 2 to 1000 different names", f"{len(names)}")
        _must(self.hospital not in self.columns, "the column of hospitals must not be one of the study", self.hospital)
        # It is read to hold the rows against the agreement, and is in nothing that is kept or leaves.
        if self.hospital not in self.ignore:
            object.__setattr__(self, "ignore", (*self.ignore, self.hospital))

    @property
    def format(self) -> Format:
        """File format, by its name."""
        return _format(self.path)


STILL_PRESENT = 0.5
"""Share of the persons of earlier releases below which a table looks like one of rewritten identifiers."""


@dataclass(frozen=True, kw_only=True)
class SiteFloors:
    """Floors this site adds to every plan; None leaves the plan's. See `shared.plans.plan.Floors` for their meaning.

    Args:
        still_present: least share of the persons of a study's earlier releases who must be in the table of a later one;
            no plan says it, and `STILL_PRESENT` is in force without it.
    """

    persons: int | None = None
    rare_level: int | None = None
    membership_auc: float | None = None
    own_row_linkage: float | None = None
    extreme_linkage: float | None = None
    approvals: int | None = None
    author_apart: bool | None = None
    still_present: float | None = None

    def __post_init__(self) -> None:
        apart = self.author_apart
        _must(apart is None or isinstance(apart, bool), "floors.author_apart must be true or false", apart)
        for name, least in (("persons", 50), ("rare_level", 10), ("approvals", 1)):
            value = getattr(self, name)
            whole = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least)
            _must(whole, f"floors.{name} must be a whole number of at least {least}", value, "Floors only tighten.")
        for name in ("membership_auc", "own_row_linkage", "extreme_linkage"):
            value = getattr(self, name)
            number = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
            _must(number and (value is None or 0 < value <= 1), f"floors.{name} must be in (0, 1]", value)
        share = self.still_present
        number = share is None or (isinstance(share, (int, float)) and not isinstance(share, bool))
        _must(
            number and (share is None or STILL_PRESENT <= share <= 1),
            f"floors.still_present must be in [{STILL_PRESENT:g}, 1]",
            share,
            "Floors only tighten.",
        )


@dataclass(frozen=True, kw_only=True)
class SiteBudget:
    """Cap on one person's privacy loss over all studies of this site; see `shared.privacy.composition`.

    Args:
        epsilon: cap on ε at `delta`; None for no cap of the site's own.
        delta: the δ at which the total of all studies is shown and capped.
    """

    epsilon: float | None = None
    delta: float = 1e-6

    def __post_init__(self) -> None:
        for name, value, least in (("epsilon", self.epsilon, 1e308), ("delta", self.delta, 1e-3)):
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= least
            _must(number or (name == "epsilon" and value is None), f"budget.site_{name} must be positive", value)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The floors in force at this site for one plan."""

    persons: int
    rare_level: int
    membership_auc: float
    own_row_linkage: float
    extreme_linkage: float
    approvals: int
    author_apart: bool = False
    difference: int = 10
    still_present: float = STILL_PRESENT

    @classmethod
    def of(cls, plan: Floors, site: SiteFloors) -> Limits:
        """The stricter of plan and site, floor by floor.

        >>> from shared.plans.plan import Floors
        >>> Limits.of(Floors(persons=80), SiteFloors(persons=60, approvals=2)).persons
        80
        """
        chosen: dict[str, Any] = {}
        for item in fields(SiteFloors):
            ours, theirs = getattr(site, item.name), getattr(plan, item.name, None)
            if theirs is None:
                chosen |= {} if ours is None else {item.name: ours}
                continue
            stricter = max if isinstance(theirs, int) else min
            chosen[item.name] = theirs if ours is None else stricter(ours, theirs)
        return cls(**chosen)


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """The settings of one site.

    Args:
        home: the folder that holds everything else.
        site: this site's id, given by the invitation.
        coordinator: the only recipient; a plan for another one is refused.
        address: ``host:port`` of the coordinator, the one outbound rule for the firewall.
        server_name: name the coordinator's certificate must carry.
        ca_fingerprint: SHA-256 of the pinned certificate authority.
        leads: public keys of the study lead(s), hexadecimal.
        threshold: lead signatures a plan must carry.
        retired_leads: keys of those who led: plans that are filed here stay theirs, and nothing new is.
        leads_since, grants_since: where those chains stood when this site was invited
            (`shared.membership.statements.ChainPlace`); blank where they had not begun.
        studies: studies this site is invited to, or was granted.
        approvers: names of the people who may approve here, with their public keys.
        retired_approvers: names of people who could, with every key that was theirs: what they signed then is verified
            with it, and nothing is approved with it any more.
        floors: what this site tightens.
        budget: what all studies together may cost.
        data: study to table.
    Raises: ConfigRefusal, at construction.
    """

    home: Path
    site: str
    coordinator: str
    address: str
    server_name: str
    ca_fingerprint: str
    leads: tuple[str, ...]
    threshold: int = 1
    studies: tuple[str, ...] = ()
    approvers: Mapping[str, str] = field(default_factory=dict)
    retired_approvers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    floors: SiteFloors = field(default_factory=SiteFloors)
    budget: SiteBudget = field(default_factory=SiteBudget)
    data: Mapping[str, TableSource] = field(default_factory=dict)
    retired_leads: tuple[str, ...] = ()
    leads_since: str = ""
    grants_since: str = ""

    def __post_init__(self) -> None:
        from shared.base.keys import PublicKey

        for name in ("site", "coordinator"):
            value = getattr(self, name)
            _must(
                isinstance(value, str) and _plain_word(value),
                f"{name} must be a plain word (letters, digits, - and _)",
                repr(value),
            )
        host, _, port = str(self.address).rpartition(":")
        _must(bool(host) and port.isdigit(), "address must be host:port", repr(self.address))
        whole = isinstance(self.threshold, int) and not isinstance(self.threshold, bool)
        _must(
            whole and 1 <= self.threshold <= max(1, len(self.leads)),
            "threshold must be between 1 and the number of leads",
            self.threshold,
        )
        retired = [(name, key) for name, keys in self.retired_approvers.items() for key in keys]
        for name, key in [
            *(("a lead", key) for key in (*self.leads, *self.retired_leads)),
            *self.approvers.items(),
            *retired,
        ]:
            try:
                PublicKey(key)
            except (Refusal, TypeError):
                _must(False, f"the key of {name} must be 64 hexadecimal digits", "another form")
        for name, key in retired:
            _must(key not in self.approvers.values(), "a retired key must not approve here as well", name)
        named = {*self.approvers, *self.retired_approvers}
        _must("agent" not in named, "no approver may be called 'agent'", "'agent'")
        for name in [*named, *self.studies, *self.data]:
            _must(_plain_word(name), "names of approvers and studies must be plain words", repr(name))
        object.__setattr__(self, "retired_approvers", {n: tuple(keys) for n, keys in self.retired_approvers.items()})
        for name in ("approvers", "retired_approvers", "data"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    # -- where things are ---------------------------------------------------------------------------------------
    @property
    def release_key(self) -> Path:
        """The agent's signing key, pinned by the coordinator at enrolment."""
        return self.home / "keys" / "release.pem"

    @property
    def next_release_key(self) -> Path:
        """The agent's next signing key, from before the ledger names it until it takes the other's place."""
        return self.home / "keys" / "release.next.pem"

    @property
    def tag_key(self) -> Path:
        """The first release key, once there is another: it signs nothing more but the tags of studies."""
        return self.home / "keys" / "tags.pem"

    def former_snapshot_key(self, mark: str) -> Path:
        """A secret of keyed hashes that studies go on with which began under it."""
        return self.home / "keys" / "snapshot" / f"{mark[:32]}.key"

    @property
    def tls_key(self) -> Path:
        """The private key of this site's TLS certificate."""
        return self.home / "keys" / "tls.pem"

    @property
    def snapshot_key(self) -> Path:
        """The secret with which snapshots and persons are hashed, so that no hash can be looked up elsewhere."""
        return self.home / "keys" / "snapshot.key"

    def frame_key(self, study: str) -> Path:
        """Encryption key of a study's sealed embeddings; absent where none is kept
        (`site_agent.release.embeddings`)."""
        return frame_key(self.home, study)

    @property
    def invitation(self) -> Path:
        """The invitation, kept (it holds a token) until `join` has completed."""
        return self.home / "keys" / "invitation.json"

    def approver_key(self, name: str) -> Path:
        """The passphrase-protected key of an approver. Raises: ConfigRefusal, naming the known ones."""
        if name not in self.approvers:
            raise ConfigRefusal(
                "an approver must be registered at this site",
                given=repr(name),
                next_step=f"Approvers here: {', '.join(self.approvers) or 'none (init --approver NAME)'}.",
            )
        return self.home / "keys" / "approvers" / f"{name}.pem"

    @property
    def ca(self) -> Path:
        """The coordinator's certificate authority."""
        return self.home / "certificates" / "ca.pem"

    @property
    def certificate(self) -> Path:
        """This site's client certificate; absent until `join` has completed."""
        return self.home / "certificates" / "site.pem"

    @property
    def ledger(self) -> Path:
        """The ledger's database."""
        return self.home / "ledger.db"

    @property
    def pause_file(self) -> Path:
        """While this file exists, nothing is drawn, approved or sent."""
        return self.home / "paused"

    @property
    def refused(self) -> Path:
        """Log of refusals (`site_agent.show.refusals`)."""
        return self.home / "refused.jsonl"

    @property
    def pinned_leads(self) -> dict[str, PublicKey]:
        """The leads' keys by handle, as `open_plan` takes them."""
        from shared.base.keys import PublicKey

        return {key.key_id: key for key in map(PublicKey, self.leads)}

    @property
    def every_lead(self) -> dict[str, PublicKey]:
        """The same with those who led before: what is filed here was signed when they did."""
        from shared.base.keys import PublicKey

        return {key.key_id: key for key in map(PublicKey, (*self.leads, *self.retired_leads))}

    @property
    def signers(self) -> dict[str, tuple[PublicKey, ...]]:
        """Every key under which a person's signature was ever good here, by name: to verify, never to approve."""
        from shared.base.keys import PublicKey

        names = {**self.approvers, **self.retired_approvers}
        current = {name: (key,) for name, key in self.approvers.items()}
        return {
            name: tuple(map(PublicKey, (*current.get(name, ()), *self.retired_approvers.get(name, ()))))
            for name in names
        }

    def source(self, study: str) -> TableSource:
        """The table of a study. Raises: StateRefusal."""
        if study not in self.data:
            raise StateRefusal(
                "the study must have a table",
                given=f"none for {study!r}",
                next_step=f"Run site-agent data add FILE --as {study}.",
            )
        return self.data[study]

    def with_source(self, study: str, source: TableSource) -> SiteConfig:
        """The same settings with a study's table set."""
        return replace(self, data={**self.data, study: source})

    # -- the file -----------------------------------------------------------------------------------------------
    @classmethod
    def load(cls, home: Path) -> SiteConfig:
        """Read `home`/site.toml. Raises: StateRefusal (no such home), ConfigRefusal."""
        try:
            text = (home / FILE_NAME).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise StateRefusal(
                f"the site's home must hold {FILE_NAME}",
                given=f"{home}",
                next_step=f"Run site-agent init, or point --home or {HOME_VARIABLE} at the right folder.",
            ) from None
        except UnicodeDecodeError:
            raise ConfigRefusal(f"{FILE_NAME} must be UTF-8", given="another encoding") from None
        return cls.from_toml(text, home=home)

    @classmethod
    def from_toml(cls, text: str, *, home: Path) -> SiteConfig:
        """Read the settings from TOML text. Raises: ConfigRefusal."""
        try:
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigRefusal(f"{FILE_NAME} must be TOML", given=f"{error}") from None
        known = {item.name for item in fields(cls)} - {"home"}
        closed(given, known, where=FILE_NAME, refusal=ConfigRefusal)
        values: dict[str, Any] = dict(given)
        for item in fields(cls):
            if item.type == "str":
                default = None if item.default is MISSING else item.default
                _must(
                    isinstance(values.get(item.name, default), str), f"{FILE_NAME} must set {item.name} to text", "none"
                )
        for name in ("leads", "studies", "retired_leads"):
            given_list = values.get(name, [])
            texts = isinstance(given_list, list) and all(isinstance(item, str) for item in given_list)
            _must(texts, f"{name} must be a list of texts", type(given_list).__name__)
            values[name] = tuple(given_list)
        for name in ("approvers", "retired_approvers", "floors", "budget", "data"):
            _must(isinstance(values.get(name, {}), dict), f"[{name}] must be a table", type(values.get(name)).__name__)
        values["retired_approvers"] = {
            name: (keys,) if isinstance(keys, str) else keys
            for name, keys in values.get("retired_approvers", {}).items()
        }
        for keys in values["retired_approvers"].values():
            texts = isinstance(keys, (list, tuple)) and all(isinstance(key, str) for key in keys)
            _must(texts, "[retired_approvers] must set each name to a key, or a list of keys", type(keys).__name__)
        values["floors"] = _section(SiteFloors, values.get("floors", {}), "[floors]")
        caps = values.get("budget", {})
        closed(caps, {"site_epsilon", "site_delta"}, where="[budget]", refusal=ConfigRefusal)
        values["budget"] = SiteBudget(**{name.removeprefix("site_"): value for name, value in caps.items()})
        values["data"] = {study: _source(study, table) for study, table in values.get("data", {}).items()}
        return cls(home=home, **values)

    def to_toml(self) -> str:
        """The commented file that `load` reads back."""
        lines = [
            "# Settings of this site; `data add` and `data map` rewrite them. An unknown key is refused.",
            "",
            f"site = {_quoted(self.site)}",
            f"coordinator = {_quoted(self.coordinator)}        # the only recipient",
            f"address = {_quoted(self.address)}        # the one outbound rule for the firewall",
            f"server_name = {_quoted(self.server_name)}",
            f"ca_fingerprint = {_quoted(self.ca_fingerprint)}",
            f"leads = [{', '.join(map(_quoted, self.leads))}]        # who may sign a plan",
            f"threshold = {self.threshold}",
            *([f"retired_leads = [{', '.join(map(_quoted, self.retired_leads))}]"] if self.retired_leads else []),
            *(
                f"{name} = {_quoted(getattr(self, name))}        # where the chain stood at the invitation"
                for name in ("leads_since", "grants_since")
                if getattr(self, name)
            ),
            f"studies = [{', '.join(map(_quoted, self.studies))}]",
            "",
            "[approvers]",
            *(f"{_quoted(name)} = {_quoted(key)}" for name, key in sorted(self.approvers.items())),
            "",
            "# Who approved here and no longer does, with the key: what they signed stays verified.",
            "[retired_approvers]",
            *(
                f"{_quoted(n)} = [{', '.join(map(_quoted, keys))}]"
                for n, keys in sorted(self.retired_approvers.items())
            ),
            "",
            "# The stricter of these and the plan's is in force: persons, rare_level, membership_auc,",
            "# own_row_linkage, extreme_linkage, approvals, author_apart. still_present is the site's alone.",
            "[floors]",
        ]
        for item in fields(SiteFloors):
            value = getattr(self.floors, item.name)
            if value is not None:
                lines.append(f"{item.name} = {str(value).lower()}")
        lines += [
            "",
            "# What all studies together may cost one person; without site_epsilon only each study's cap holds.",
        ]
        lines += ["[budget]", f"site_delta = {self.budget.delta}"]
        if self.budget.epsilon is not None:
            lines.append(f"site_epsilon = {self.budget.epsilon}")
        for study, source in sorted(self.data.items()):
            lines += ["", f"[data.{_quoted(study)}]", f"path = {_quoted(str(source.path))}"]
            if source.format == "csv":
                lines += [f"encoding = {_quoted(source.encoding)}", f"delimiter = {_quoted(source.delimiter)}"]
            lines += _in_a_database(source)
            if source.hospital:
                lines.append(f"hospital = {_quoted(source.hospital)}        # the column that says whose row it is")
                lines.append(f"hospitals = [{', '.join(map(_quoted, source.hospitals))}]")
            lines.append(f"ignore = [{', '.join(map(_quoted, source.ignore))}]")
            lines += ["", f"[data.{_quoted(study)}.columns]        # name in the file = name in the dictionary"]
            lines += [f"{_quoted(name)} = {_quoted(to)}" for name, to in source.columns.items()]
            for name, recoding in sorted(source.values.items()):
                plain = recoding.to_canonical()
                levels = plain.pop("levels", {})
                lines += ["", f"[data.{_quoted(study)}.values.{_quoted(name)}]        # how the file's values are read"]
                lines += [
                    f"{key} = {_quoted(value) if isinstance(value, str) else value}" for key, value in plain.items()
                ]
                pairs = ", ".join(f"{_quoted(value)} = {_quoted(level)}" for value, level in levels.items())
                lines += [f"levels = {{ {pairs} }}"] if levels else []
            edges = source.edges
            own = edges is not None and source.format == "graphml" and edges == Edges(path=source.path)
            if edges is not None and not own:
                lines += ["", f"[data.{_quoted(study)}.edges]        # who is connected with whom: two of its columns"]
                lines += [f"path = {_quoted(str(edges.path))}"]
                if edges.format == "csv":
                    lines += [f"encoding = {_quoted(edges.encoding)}", f"delimiter = {_quoted(edges.delimiter)}"]
                lines += _in_a_database(edges)
                lines += [f"from = {_quoted(edges.start)}", f"to = {_quoted(edges.end)}"]
        return "\n".join(lines) + "\n"

    def save(self) -> None:
        """Write `home`/site.toml, whole or not at all."""
        from shared.base.keys import write_private

        write_private(self.home / FILE_NAME, self.to_toml().encode())


def _in_a_database(source: TableSource | Edges) -> list[str]:
    return [f"{name} = {_quoted(value)}" for name in ("table", "database") if (value := getattr(source, name))]


def _section(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    closed(given, {item.name for item in fields(kind)}, where=where, refusal=ConfigRefusal)
    return kind(**given)


def _source(study: str, given: Any) -> TableSource:
    where = f"[data.{study}]"
    _must(isinstance(given, dict), f"{where} must be a table of settings", type(given).__name__)
    _must(isinstance(given.get("path"), str), f"{where} must set path", "none")
    values = {**given, "path": Path(given["path"]), "ignore": tuple(given.get("ignore", ()))}
    columns = values.get("columns", {})
    texts = isinstance(columns, dict) and all(isinstance(v, str) for v in columns.values())
    _must(texts, f"{where}.columns must map names to names", type(columns).__name__)
    for name in ("encoding", "delimiter", "table", "database", "hospital"):
        _must(isinstance(values.get(name, ""), str), f"{where}.{name} must be text", type(values.get(name)).__name__)
    named = values.get("hospitals", [])
    listed = isinstance(named, list) and all(isinstance(name, str) for name in named)
    _must(listed, f"{where}.hospitals must be a list of names", type(named).__name__)
    values["hospitals"] = tuple(named)
    recoded = values.get("values", {})
    tables = isinstance(recoded, dict) and all(isinstance(one, dict) for one in recoded.values())
    _must(tables, f"{where}.values must be a table for each column", type(recoded).__name__)
    values["values"] = {name: _section(Recoding, one, f"[data.{study}.values.{name}]") for name, one in recoded.items()}
    if "edges" in values:
        values["edges"] = _edges(where, values["edges"])
    source = _section(TableSource, values, where)
    assert isinstance(source, TableSource)
    return source


def _edges(where: str, given: Any) -> Edges:
    where = f"{where}.edges"
    _must(isinstance(given, dict), f"{where} must be a table of settings", type(given).__name__)
    known = {"path", "encoding", "delimiter", "from", "to", "table", "database"}
    closed(given, known, where=where, refusal=ConfigRefusal)
    _must(isinstance(given.get("path"), str), f"{where} must set path", "none")
    for name, value in given.items():
        _must(isinstance(value, str), f"{where}.{name} must be text", type(value).__name__)
    names = {"from": "start", "to": "end"}
    values: dict[str, Any] = {names.get(name, name): value for name, value in given.items()}
    return Edges(**{**values, "path": Path(given["path"])})


def _quoted(text: str) -> str:
    """A TOML basic string."""
    import json

    # JSON's escapes are TOML's, but for DEL, which JSON leaves bare.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
