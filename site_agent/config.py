"""site.toml: one file in the site's home folder, one frozen value in the program.

`init` writes it from the invitation, `data add` and `data map` edit it, and a person may. It holds no secret (keys
have files of their own), so it can be shown to anyone at the hospital. Two rules are built in rather than documented:
an unknown key is refused with the nearest known one, and a floor can only be tightened, because the value in force is
the stricter of the plan's and the site's (`Limits.of`).
"""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shared.base.canonical import closed, is_number, is_whole, is_word, parse_json
from shared.errors import (
    BudgetRefusal,
    ConfigRefusal,
    PlanRefusal,
    Refusal,
    SchemaRefusal,
    StateRefusal,
)
from site_agent.records.mapping import document
from site_agent.records.mapping.declared import Recoding
from site_agent.records.mapping.toml_form import FILE_NAME, must, quoted, section
from site_agent.records.source import Edges, TableSource, mapping_path, source_from_toml, source_to_toml

if TYPE_CHECKING:
    from shared.base.keys import PublicKey
    from shared.plans.plan import Floors, StudyPlan
    from shared.wire.site_messages import CoordinatorLimits

__all__ = ["FILE_NAME", "HOME_VARIABLE", "Edges", "Limits", "Recoding", "SiteConfig", "SiteFloors", "TableSource"]
__all__ += ["default_home"]

HOME_VARIABLE = "TRIBUTARY_SITE_HOME"


def default_home() -> Path:
    """Default home folder without ``--home``: the environment's word, else ./site-home."""
    return Path(os.environ.get(HOME_VARIABLE) or "site-home")


def frame_key(home: Path, study: str) -> Path:
    """Path of the key of a study's sealed embeddings: the one place that must be kept out of copies of the outbox."""
    return home / "keys" / "frames" / f"{study}.key"


STILL_PRESENT = 0.5
"""Share of the persons of earlier releases below which a table looks like one of rewritten identifiers."""


@dataclass(frozen=True, kw_only=True)
class SiteFloors:
    """Floors this site adds to every plan; None leaves the plan's. See `shared.plans.plan.Floors` for their meaning.

    Args:
        still_present: least share of the persons of a study's earlier releases who must be in the table of a later one;
            no plan says it, and `STILL_PRESENT` is in force without it.
        minimum_k: acts on plans of posture ``local``, which must then name their quasi-identifiers (`require_named`).
    """

    persons: int | None = None
    rare_level: int | None = None
    membership_auc: float | None = None
    own_row_linkage: float | None = None
    extreme_linkage: float | None = None
    approvals: int | None = None
    author_apart: bool | None = None
    still_present: float | None = None
    minimum_k: int | None = None

    def __post_init__(self) -> None:
        apart = self.author_apart
        must(apart is None or isinstance(apart, bool), "floors.author_apart must be true or false", apart)
        for name, least in (("persons", 50), ("rare_level", 10), ("approvals", 1), ("minimum_k", 10)):
            value = getattr(self, name)
            whole = value is None or (is_whole(value) and value >= least)
            must(whole, f"floors.{name} must be a whole number of at least {least}", value, "Floors only tighten.")
        for name in ("membership_auc", "own_row_linkage", "extreme_linkage"):
            value = getattr(self, name)
            share = value is None or (is_number(value) and 0 < value <= 1)
            must(share, f"floors.{name} must be in (0, 1]", value)
        present = self.still_present
        share = present is None or (is_number(present) and STILL_PRESENT <= present <= 1)
        must(share, f"floors.still_present must be in [{STILL_PRESENT:g}, 1]", present, "Floors only tighten.")

    def require_named(self, plan: StudyPlan) -> None:
        """Raises: PlanRefusal, where this site asks for `minimum_k` of rows that follow records, and none is named."""
        if self.minimum_k and plan.records_decide and not plan.quasi_identifiers:
            raise PlanRefusal(
                f"a plan must name its quasi-identifiers: this site asks for {self.minimum_k} persons who share each "
                "combination of them",
                given="none",
                next_step="Ask the lead for a version with [quasi_identifiers], or leave minimum_k out of site.toml.",
            )


@dataclass(frozen=True, kw_only=True)
class SiteBudget:
    """Cap on one person's privacy loss over all studies of this site; see `shared.privacy.composition`.

    Args:
        epsilon: cap on ε at `delta`; None for no cap of the site's own.
        delta: the δ at which the total of all studies is shown and capped.
        worst_epsilon: cap on ε of one release where its plan says that it hangs on who looks together: of whoever sees
            most, at the plan's δ; None for no cap.
    """

    epsilon: float | None = None
    delta: float = 1e-6
    worst_epsilon: float | None = None

    def __post_init__(self) -> None:
        for name, most in (("epsilon", 1e308), ("delta", 1e-3), ("worst_epsilon", 1e308)):
            value = getattr(self, name)
            number = is_number(value) and 0 < value <= most
            must(number or (name != "delta" and value is None), f"budget.site_{name} must be positive", value)

    def require_worst(self, plan: StudyPlan) -> None:
        """Raises: BudgetRefusal, where somebody sees more of a release than `worst_epsilon` lets them."""
        who, worst = max(plan.release.seen_by(plan).items(), key=lambda row: row[1], default=("", 0.0))
        if self.worst_epsilon is not None and worst > self.worst_epsilon:
            from shared.privacy.stated import shown_epsilon

            raise BudgetRefusal(
                f"this site's cap on whoever sees most of a release is ε = {shown_epsilon(self.worst_epsilon)}",
                given=f"ε = {shown_epsilon(worst)} for {who}",
                next_step="Ask the lead for a plan that tells less, or raise site_worst_epsilon in site.toml.",
            )


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
    minimum_k: int = 0

    @property
    def class_size(self) -> int:
        """Persons below which a combination of quasi-identifiers is told of at the site, refused or not."""
        from shared.plans.plan import FEWEST_ALIKE

        return max(FEWEST_ALIKE, self.minimum_k)

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
        courier: whether this site has no line to the coordinator; its files are carried (`site_agent.egress.courier`).
        memory_mb: most megabytes that a release may take; None for what the machine has left.
        retired_leads: keys of those who led: plans that are filed here stay theirs, and nothing new is.
        leads_since, grants_since: where those chains stood when this site was invited
            (`shared.membership.statements.ChainPlace`); blank where they had not begun.
        studies: studies this site is invited to, or was granted.
        approvers: names of the people who may approve here, with their public keys.
        retired_approvers: names of people who could, with every key that was theirs: what they signed then is verified
            with it, and nothing is approved with it any more.
        budget: what all studies together may cost.
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
    courier: bool = False
    memory_mb: int | None = None

    def __post_init__(self) -> None:
        from shared.base.keys import PublicKey

        for name in ("site", "coordinator"):
            value = getattr(self, name)
            must(is_word(value), f"{name} must be a plain word (letters, digits, - and _)", repr(value))
        host, _, port = str(self.address).rpartition(":")
        must(bool(host) and port.isdigit(), "address must be host:port", repr(self.address))
        must(isinstance(self.courier, bool), "courier must be true or false", self.courier)
        memory = self.memory_mb
        number = memory is None or (is_whole(memory) and memory >= 256)
        must(number, "memory_mb must be a whole number of at least 256 megabytes", memory)
        must(
            is_whole(self.threshold) and 1 <= self.threshold <= max(1, len(self.leads)),
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
                must(False, f"the key of {name} must be 64 hexadecimal digits", "another form")
        for name, key in retired:
            must(key not in self.approvers.values(), "a retired key must not approve here as well", name)
        named = {*self.approvers, *self.retired_approvers}
        must("agent" not in named, "no approver may be called 'agent'", "'agent'")
        for name in [*named, *self.studies, *self.data]:
            must(is_word(name), "names of approvers and studies must be plain words", repr(name))
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
    def coordinator_limits(self) -> Path:
        """The largest release that the coordinator takes, as it said last (`airlock.drawing.ask_limits`)."""
        return self.home / "limits.json"

    @property
    def coordinator_takes(self) -> CoordinatorLimits | None:
        """The largest release that the coordinator takes, as it said last; None where it has not said."""
        from shared.wire.site_messages import CoordinatorLimits

        with suppress(OSError, SchemaRefusal, TypeError):  # what cannot be read is asked for anew with the next release
            return CoordinatorLimits(**parse_json(self.coordinator_limits.read_bytes()))
        return None

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
        """The same settings with a study's table set; what is mapped of it gets the salt of its hash."""
        if source.is_mapped and not source.salt:
            source = replace(source, salt=secrets.token_hex(16))
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
                must(
                    isinstance(values.get(item.name, default), str), f"{FILE_NAME} must set {item.name} to text", "none"
                )
        for name in ("leads", "studies", "retired_leads"):
            given_list = values.get(name, [])
            texts = isinstance(given_list, list) and all(isinstance(item, str) for item in given_list)
            must(texts, f"{name} must be a list of texts", type(given_list).__name__)
            values[name] = tuple(given_list)
        for name in ("approvers", "retired_approvers", "floors", "budget", "data"):
            must(isinstance(values.get(name, {}), dict), f"[{name}] must be a table", type(values.get(name)).__name__)
        values["retired_approvers"] = {
            name: (keys,) if isinstance(keys, str) else keys
            for name, keys in values.get("retired_approvers", {}).items()
        }
        for keys in values["retired_approvers"].values():
            texts = isinstance(keys, (list, tuple)) and all(isinstance(key, str) for key in keys)
            must(texts, "[retired_approvers] must set each name to a key, or a list of keys", type(keys).__name__)
        values["floors"] = section(SiteFloors, values.get("floors", {}), "[floors]")
        caps = values.get("budget", {})
        closed(caps, {"site_epsilon", "site_delta", "site_worst_epsilon"}, where="[budget]", refusal=ConfigRefusal)
        values["budget"] = SiteBudget(**{name.removeprefix("site_"): value for name, value in caps.items()})
        values["data"] = {
            study: source_from_toml(study, table, home) for study, table in values.get("data", {}).items()
        }
        return cls(home=home, **values)

    def to_toml(self) -> str:
        """The commented file that `load` reads back."""
        lines = [
            "# Settings of this site; `data add` and `data map` rewrite them. An unknown key is refused.",
            "",
            f"site = {quoted(self.site)}",
            f"coordinator = {quoted(self.coordinator)}        # the only recipient",
            f"address = {quoted(self.address)}        # the one outbound rule for the firewall",
            f"server_name = {quoted(self.server_name)}",
            f"ca_fingerprint = {quoted(self.ca_fingerprint)}",
            f"leads = [{', '.join(map(quoted, self.leads))}]        # who may sign a plan",
            f"threshold = {self.threshold}",
            *(["courier = true        # no line: site-agent outbox export, outbox import"] if self.courier else []),
            *([f"memory_mb = {self.memory_mb}        # most of one release"] if self.memory_mb is not None else []),
            *([f"retired_leads = [{', '.join(map(quoted, self.retired_leads))}]"] if self.retired_leads else []),
            *(
                f"{name} = {quoted(getattr(self, name))}        # where the chain stood at the invitation"
                for name in ("leads_since", "grants_since")
                if getattr(self, name)
            ),
            f"studies = [{', '.join(map(quoted, self.studies))}]",
            "",
            "[approvers]",
            *(f"{quoted(name)} = {quoted(key)}" for name, key in sorted(self.approvers.items())),
            "",
            "# Who approved here and no longer does, with the key: what they signed stays verified.",
            "[retired_approvers]",
            *(f"{quoted(n)} = [{', '.join(map(quoted, keys))}]" for n, keys in sorted(self.retired_approvers.items())),
            "",
            "# The stricter of these and the plan's is in force: persons, rare_level, membership_auc,",
            "# own_row_linkage, extreme_linkage, approvals, author_apart, minimum_k.",
            "# still_present is the site's alone.",
            "[floors]",
        ]
        for item in fields(SiteFloors):
            value = getattr(self.floors, item.name)
            if value is not None:
                lines.append(f"{item.name} = {str(value).lower()}")
        lines += [
            "",
            "# What all studies together may cost one person; without site_epsilon only each study's cap holds.",
            "# site_worst_epsilon caps a release of a secure sum for whoever looks together and sees most of it.",
        ]
        lines += ["[budget]", f"site_delta = {self.budget.delta}"]
        if self.budget.epsilon is not None:
            lines.append(f"site_epsilon = {self.budget.epsilon}")
        if self.budget.worst_epsilon is not None:
            lines.append(f"site_worst_epsilon = {self.budget.worst_epsilon}")
        for study, source in sorted(self.data.items()):
            lines += source_to_toml(study, source)
        return "\n".join(lines) + "\n"

    def save(self) -> None:
        """Write `home`/site.toml, whole or not at all, and before it the mappings that it names."""
        from shared.base.keys import write_private

        for study, source in sorted(self.data.items()):
            path, text = mapping_path(self.home, study), document.text(source.mapped).encode()
            if source.is_mapped and not (path.exists() and path.read_bytes() == text):
                write_private(path, text)
        write_private(self.home / FILE_NAME, self.to_toml().encode())
