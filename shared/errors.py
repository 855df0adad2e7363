"""Every refusal of the product, typed: what must hold, what was given, what to do next.

A refusal is an answer, never a crash and never a zero. Each class below has a stable code (it travels on the
wire and stands in the operator's manual), the person who can fix it, and the exit code of the command line:

    Refusal
    ├── UsageRefusal          2   E_PARAMETER  E_CONFIG  E_STATE  E_PACKAGE
    ├── PolicyRefusal        10   E_SMALL_N  E_AUDIT  E_DIFFERENCING  E_CHECKS  E_PAUSED  E_PLAN
    │                             E_PLAN_CHANGED  E_PLAN_ROLLBACK  E_PLAN_EXPIRED  E_ROLE  E_UNKNOWN_EVENT
    ├── BudgetRefusal        11   E_BUDGET  E_ROUNDS
    ├── ApprovalRefusal      12   E_NOT_APPROVED
    ├── NetworkRefusal       20   E_NETWORK  E_RATE  E_STORE_AWAY (a StorageRefusal too)
    ├── CertificateRefusal   21   E_CERT  E_TOKEN  E_ACCESS
    ├── IntegrityRefusal     30   E_INTEGRITY  E_SIGNATURE  E_REPLAY  E_LEDGER  E_LOCKED  E_STORAGE  E_TOO_LARGE
    │                             E_RECEIPT  E_SCHEMA  E_PASSPHRASE
    └── DataRefusal          40   E_DICTIONARY  E_DATA_FILE  E_DUPLICATE_PERSON  E_MISSING  E_ESTIMATE  E_TRAINING

Messages about records name the column, the rule and the count, never a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import ClassVar

from shared import DISTRIBUTION

__all__ = ["CATALOGUE", "EXTRAS", "Refusal", "lacking", "machine_failures", "meant", "refusal_from_code", "require"]

EXTRAS = {
    "flwr": "federated",
    "torch": "torch",
    "nflows": "torch",
    "networkx": "graphml",
    "openpyxl": "excel",
    "pyreadstat": "statistics",
    "sqlalchemy": "sql",
    "psycopg": "postgres",
    "pkcs11": "pkcs11",
    "Crypto": "secure-sum",
    "distributed": "dask",
    "s3fs": "object-store",
    "matplotlib": "figures",
    "pyarrow": "parquet",
}
"""Name of a module that not everybody installs to the extra of the distribution that brings it."""


class Refusal(Exception):
    """The one base to catch.

    Args:
        must: what must hold, as a sentence fragment: ``"w must be in [0, 1)"``.
        given: what was given; for records a column, a rule and a count, never a value.
        next_step: what the reader does next: a command, or a change of one named thing.

    >>> print(ParameterError("w must be in [0, 1)", given="1.2", next_step="Lower w, or solve it from a target ε."))
    w must be in [0, 1), got 1.2. Lower w, or solve it from a target ε.
    """

    code: ClassVar[str] = "E_REFUSED"
    exit_code: ClassVar[int] = 1
    fixer: str = "whoever ran the command"
    meaning: ClassVar[str] = "The request was refused."

    def __init__(self, must: str, *, given: str = "", next_step: str = "") -> None:
        self.must, self.given, self.next_step = must, given, next_step
        text = f"{must}, got {given}." if given else must.rstrip(".") + "."
        super().__init__(f"{text} {next_step}".strip())

    @property
    def outside(self) -> Refusal:
        """The refusal as the other side hears it; itself, unless it names what is this side's own."""
        return self


class UsageRefusal(Refusal):
    """The command, a setting or a parameter cannot be used as given."""

    code, exit_code, meaning = "E_USAGE", 2, "The command or a setting cannot be used as given."


class PolicyRefusal(Refusal):
    """A rule of the plan or of the site forbids it."""

    code, exit_code, fixer = "E_POLICY", 10, "data steward, with the study lead"
    meaning = "A rule of the plan or of the site forbids it."


class BudgetRefusal(Refusal):
    """The release would cost more than the budget that is left."""

    code, exit_code, fixer = "E_BUDGET", 11, "study lead, by amending the plan"
    meaning = "The release would cost more than the budget that is left."


class ApprovalRefusal(Refusal):
    """No valid approval of these exact bytes."""

    code, exit_code, fixer = "E_NOT_APPROVED", 12, "an approver of the site"
    meaning = "There is no valid approval of these exact bytes."


class NetworkRefusal(Refusal):
    """The other side could not be reached, or stopped answering."""

    code, exit_code, fixer = "E_NETWORK", 20, "hospital IT"
    meaning = "The other side could not be reached, or stopped answering."


class UnknownMethod(NetworkRefusal):
    """The other side is of a version that does not know the method; asking again changes nothing."""

    meaning = "The other side is of a version that does not know this."


class AwaitsCourier(NetworkRefusal):
    """A site without a line has asked, and the coordinator's answer has not been carried back yet."""

    meaning = "The coordinator's answer has not been carried back yet."


class CertificateRefusal(Refusal):
    """A certificate is expired, foreign, revoked or not yet valid."""

    code, exit_code, fixer = "E_CERT", 21, "study lead (renew late, or invite anew), hospital IT (clock)"
    meaning = "A certificate is expired, foreign, revoked or not yet valid."


class IntegrityRefusal(Refusal):
    """Bytes, a signature or a chain are not what they must be."""

    code, exit_code, fixer = "E_INTEGRITY", 30, "data steward, with the study lead"
    meaning = "Bytes are not what they must be."


class DataRefusal(Refusal):
    """The records do not fit the dictionary, or do not support what was asked."""

    code, exit_code, fixer = "E_DATA", 40, "data steward"
    meaning = "The records do not fit the dictionary."


# -- usage ------------------------------------------------------------------------------------------------------
class ParameterError(UsageRefusal):
    """A parameter is outside its domain."""

    code, meaning = "E_PARAMETER", "A parameter is outside its domain."


class ConfigRefusal(UsageRefusal):
    """The configuration file has an unknown key or an impossible value."""

    code, fixer = "E_CONFIG", "hospital IT"
    meaning = "The configuration file has an unknown key or an impossible value."


class StateRefusal(UsageRefusal):
    """The step before this one has not been taken yet."""

    code, meaning = "E_STATE", "The step before this one has not been taken yet."


class PackageRefusal(UsageRefusal):
    """A package that this needs is not installed."""

    code, fixer, meaning = "E_PACKAGE", "hospital IT", "A package that this needs is not installed."


# -- policy -----------------------------------------------------------------------------------------------------
class SmallN(PolicyRefusal):
    """Fewer persons than the floor."""

    code, meaning = "E_SMALL_N", "Fewer persons than the disclosure floor."


class AuditRefusal(PolicyRefusal):
    """An attack we tried on the release succeeds more often than the plan allows."""

    code, meaning = "E_AUDIT", "An attack we tried on the release succeeds more often than the plan allows."


class DifferencingRefusal(PolicyRefusal):
    """Two releases differ by too few persons."""

    code, meaning = "E_DIFFERENCING", "Two releases differ by too few persons."


class ChecksRefusal(PolicyRefusal):
    """A disclosure check on the sealed release failed."""

    code, meaning = "E_CHECKS", "A disclosure check on the sealed release failed."


class PausedRefusal(PolicyRefusal):
    """The steward has paused this site."""

    code, fixer, meaning = "E_PAUSED", "data steward (site-agent resume)", "The steward has paused this site."


class PlanRefusal(PolicyRefusal):
    """The study plan is unknown, unsigned, or not valid."""

    code, fixer, meaning = "E_PLAN", "study lead", "The study plan is unknown, unsigned, or not valid."


class PlanChanged(PlanRefusal):
    """The plan is not the one that was approved."""

    code, fixer = "E_PLAN_CHANGED", "data steward (site-agent plan show, plan approve)"
    meaning = "The plan is not the one that was approved."


class PlanRollback(PlanRefusal):
    """An older plan version than the one the site already knows."""

    code, meaning = "E_PLAN_ROLLBACK", "An older plan version than the one already known."


class PlanExpired(PlanRefusal):
    """The plan's expiry date has passed."""

    code, meaning = "E_PLAN_EXPIRED", "The plan's expiry date has passed."


class RoleRefusal(PolicyRefusal):
    """The key is valid, but may not do this."""

    code, meaning = "E_ROLE", "The key is valid, but its role may not do this."


class UnknownEvent(PolicyRefusal):
    """A privacy event that this version cannot account for is refused, never guessed."""

    code, fixer = "E_UNKNOWN_EVENT", "hospital IT (update)"
    meaning = "A privacy event that this version cannot account for."


# -- budget -----------------------------------------------------------------------------------------------------
class RoundsRefusal(BudgetRefusal):
    """A training asks for more rounds than its charge has bought."""

    code, fixer = "E_ROUNDS", "study lead, by a plan that reserves more"
    meaning = "A training asks for more rounds than were reserved."


# -- certificates and tokens --------------------------------------------------------------------------------------
class TokenRefusal(CertificateRefusal):
    """The invitation's token is used, expired, or belongs to another site."""

    code, fixer = "E_TOKEN", "study lead (coordinator invite)"
    meaning = "The invitation's token is used, expired, or belongs to another site."


class AccessRefusal(CertificateRefusal):
    """The analyst's token is unknown, expired or revoked, or the study is none of its own."""

    code, fixer = "E_ACCESS", "study lead (coordinator analyst add)"
    meaning = "The analyst's token is unknown, expired or revoked, or not for this study."


# -- network ------------------------------------------------------------------------------------------------------
class RateRefusal(NetworkRefusal):
    """More questions at once, or in a minute, than one analyst or all of them may ask."""

    code, fixer = "E_RATE", "analyst (ask more slowly)"
    meaning = "More questions at once, or in a minute, than may be asked."


# -- integrity ----------------------------------------------------------------------------------------------------
class SignatureRefusal(IntegrityRefusal):
    """A signature does not verify, or the key is not the pinned one."""

    code, meaning = "E_SIGNATURE", "A signature does not verify, or the key is not the pinned one."


class PassphraseRefusal(SignatureRefusal):
    """No passphrase was given, or one that does not open the key."""

    code, fixer = "E_PASSPHRASE", "the person whose key it is"
    meaning = "No passphrase was given, or one that does not open the key."


class ReplayRefusal(IntegrityRefusal):
    """The release names another study, wave, site or recipient, or an id already used for other bytes."""

    code = "E_REPLAY"
    meaning = "The release names another study, wave, site or recipient, or its id is used for other bytes."


class LedgerRefusal(IntegrityRefusal):
    """The ledger was edited, truncated, or restored from an old copy."""

    code, fixer = "E_LEDGER", "data steward (site-agent ledger recover)"
    meaning = "The ledger was edited, truncated, or restored from an old copy."


class LockedRefusal(IntegrityRefusal):
    """Another agent holds this state folder."""

    code, fixer, meaning = "E_LOCKED", "hospital IT", "Another agent holds this state folder."


class StorageRefusal(IntegrityRefusal):
    """The disk is full, read-only, or failed; or memory is."""

    code, fixer = "E_STORAGE", "hospital IT"
    meaning = "The disk is full, read-only, or failed; or memory is."


class StoreAway(NetworkRefusal, StorageRefusal):
    """The coordinator answers, and its database does not: asked again later, it will; nothing is wrong with the way."""

    code, fixer = "E_STORE_AWAY", "whoever runs the coordinator"
    meaning = "The coordinator answers, but its database does not."
    place: str = ""
    """Where the database is; said to the coordinator's own people only."""

    @property
    def outside(self) -> StoreAway:
        """The refusal as sites and analysts hear it, without the place."""
        if not self.place:
            return self
        return StoreAway("the coordinator's database must answer", given="no connection to it")


class TooLarge(IntegrityRefusal):
    """More bytes than the cap."""

    code, meaning = "E_TOO_LARGE", "More bytes than the cap."


class ReceiptRefusal(IntegrityRefusal):
    """The receipt's figures are not what its event gives."""

    code, meaning = "E_RECEIPT", "The receipt's figures are not what its event gives."


class SchemaRefusal(IntegrityRefusal):
    """A file or message does not have the form it must have."""

    code, meaning = "E_SCHEMA", "A file or message does not have the form it must have."


# -- data -----------------------------------------------------------------------------------------------------------
class DictionaryRefusal(DataRefusal):
    """A column, level or value is outside the dictionary."""

    code, meaning = "E_DICTIONARY", "A column, level or value is outside the dictionary."


class DataFileRefusal(DataRefusal):
    """The file is empty, truncated, or in an encoding that cannot be read."""

    code, meaning = "E_DATA_FILE", "The file is empty, truncated, or in an encoding that cannot be read."


class DuplicatePerson(DataRefusal):
    """A person stands in the table more than once."""

    code, meaning = "E_DUPLICATE_PERSON", "A person stands in the table more than once."


class MissingRefusal(DataRefusal):
    """Values are missing where the dictionary allows none, or a column is empty."""

    code, meaning = "E_MISSING", "Values are missing where the dictionary allows none, or a column is empty."


class EstimateRefusal(DataRefusal):
    """The table does not support the estimate (separation, no events, one level)."""

    code, fixer = "E_ESTIMATE", "analyst (another model)"
    meaning = "The table does not support the estimate."


class TrainingRefusal(DataRefusal):
    """Training did not give a usable flow."""

    code, fixer, meaning = (
        "E_TRAINING",
        "data steward, with the study lead",
        "Training did not give a usable flow.",
    )


def _walk(root: type[Refusal]) -> list[type[Refusal]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _walk(child))]


# The first class of a code: what is said more exactly inside the program has its parent's code outside.
CATALOGUE: dict[str, type[Refusal]] = {kind.code: kind for kind in reversed(_walk(Refusal))}


def meant(given: str, known: Iterable[str], *, what: str = "") -> str:
    """The next step of who named something that is not known: the nearest name, or all that there are.

    Args:
        what: what the known names are, in the plural; blank where the refusal lists them itself.

    >>> meant("hksj", ("z", "t", "knha")), meant("knhaa", ("z", "knha")), meant("x", ("age", "sex"), what="Columns")
    ('Choose one of them.', "Did you mean 'knha'?", 'Columns: age, sex.')
    """
    import difflib

    names = list(known)
    alike = {name.lower(): name for name in names}
    near = difflib.get_close_matches(given.lower(), alike, n=1)
    if near:
        return f"Did you mean {alike[near[0]]!r}?"
    return f"{what}: {', '.join(names) or 'none yet'}." if what else "Choose one of them."


def refusal_from_code(code: str, text: str) -> Refusal:
    """Rebuild a refusal that arrived over the wire; an unknown code becomes the base class.

    >>> refusal_from_code("E_BUDGET", "too dear").exit_code
    11
    """
    kind = CATALOGUE.get(code, Refusal)
    refusal = kind.__new__(kind)
    Exception.__init__(refusal, text)
    refusal.must, refusal.given, refusal.next_step = text, "", ""
    return refusal


def lacking(module: str, part: str = "") -> PackageRefusal:
    """The refusal that says how a missing module is installed.

    Args:
        module: its name, as it is imported.
        part: what the program at work needs in any case.

    >>> print(lacking("networkx", "site"))
    networkx must be installed, got none. pip install 'tributary-meta[site,graphml]'
    """
    name = module.partition(".")[0]
    extras = ",".join(filter(None, (part, EXTRAS.get(name))))
    step = f"pip install '{DISTRIBUTION}[{extras}]'"
    return PackageRefusal(f"{name} must be installed", given="none", next_step=step)


def require(*modules: str, part: str = "") -> None:
    """See that packages of an extra are there, before anything is read or charged that needs them.

    Args:
        modules: as they are imported.
        part: as of `lacking`.

    Raises: PackageRefusal: the first that is not.
    """
    for module in modules:
        if find_spec(module) is None:
            raise lacking(module, part)


@contextmanager
def machine_failures() -> Iterator[None]:
    """Tell what this machine lacks as a refusal: memory, or a library. Also a decorator.

    Its words are ours: a library's may quote what it was working on.

    Raises: StorageRefusal, PackageRefusal, ConfigRefusal; whatever else went wrong as it is.
    """
    try:
        yield
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in EXTRAS:
            raise lacking(error.name or "") from None
        raise ConfigRefusal(
            "the installation must hold every library",
            given=f"{(error.name or 'one').partition('.')[0]}, which cannot be loaded",
            next_step="Install this version anew. A reservation is kept, and costs nothing more.",
        ) from None
    except (MemoryError, RuntimeError) as error:
        # What torch says of too little memory has no type of its own.
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        raise StorageRefusal(
            "the machine must have memory enough for this",
            given="too little",
            next_step="End other programs, or take a larger machine, and repeat it.",
        ) from None
