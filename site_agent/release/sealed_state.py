"""Files that a release leaves at the site for later waves: the flow that drew it, and the person of each released row.

Both files are bound by the seal entry and never leave. ``fit.npz`` is the flow as plain arrays with w, R, the
dictionary and the encoder's version, and the drawn matrix in the order of its records. ``rows.json`` names the person
(a keyed pseudonym) and the source row of each released row. From them

* a later wave draws new persons through exactly the first one's flow, and copies earlier rows unchanged;
* a run that was killed between its seal and its audit is audited, where it would otherwise have to be burnt.

Neither file is of use to anybody outside: without the site's key the pseudonyms cannot be looked up.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, canonical_list, parse_json, sha256_hex
from shared.errors import IntegrityRefusal, PlanChanged, SchemaRefusal
from shared.plans.encoding import ENCODER_VERSION
from shared.plans.outcomes import fitted_by
from shared.plans.plan import StudyPlan

if TYPE_CHECKING:
    from pathlib import Path

    from site_agent.ledger.book import Hold

__all__ = ["CAP", "FIT", "ROWS", "ReleasedRows", "SealedFlow", "fitted_by", "read_fit", "read_rows", "read_sealed"]

FIT, ROWS = "fit.npz", "rows.json"
FORMAT = "tributary-fit/1"
CAP = 1 << 30
_PART = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class SealedFlow:
    """A sealed flow, and what was drawn through it.

    Args:
        flow: a bijection (`shared.flows.chain`).
        epochs: passes over the records it was fitted with.
        radius: R.
        dictionary: hash of the dictionary that encoded the records.
        fitted_by: digest of what the plan says about fitting (`fitted_by`): the posture, and everything it rests on.
        flow_of: id of the release for which it was fitted.
        encoder: version of the encoder.
        fresh: whether this release fitted it; else it was sealed with an earlier one.
        noisy: (n, d) drawn rows, in the order of their records.
    """

    flow: Any
    epochs: int
    w: float
    radius: float
    dictionary: str
    fitted_by: str
    flow_of: str
    encoder: int = ENCODER_VERSION
    fresh: bool = True
    noisy: Any = field(repr=False)

    def to_bytes(self) -> bytes:
        """An npz file without pickle."""
        import numpy as np

        from shared.flows.chain import to_arrays

        meta = {
            "format": FORMAT,
            "epochs": self.epochs,
            "w": self.w,
            "radius": self.radius,
            "dictionary": self.dictionary,
            "fitted_by": self.fitted_by,
            "flow_of": self.flow_of,
            "encoder": self.encoder,
            "fresh": self.fresh,
        }
        sink = io.BytesIO()
        np.savez(
            sink,
            allow_pickle=False,
            meta=np.frombuffer(canonical_json(meta), dtype=np.uint8),
            noisy=np.asarray(self.noisy, dtype=np.float64),
            **{f"flow.{name}": value for name, value in to_arrays(self.flow).items()},  # type: ignore[arg-type]
        )
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> SealedFlow:
        """The reverse of `to_bytes`. Raises: SchemaRefusal."""
        import numpy as np

        from shared.flows.chain import from_arrays

        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            meta = parse_json(arrays.pop("meta").tobytes())
            if meta.pop("format") != FORMAT:
                raise ValueError
            noisy = arrays.pop("noisy")
            flow = from_arrays({name.removeprefix("flow."): value for name, value in arrays.items()})
            return cls(flow=flow, noisy=noisy, **meta)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise SchemaRefusal(f"a sealed fit must have the form {FORMAT}", given=type(error).__name__) from None

    def require_fits(self, plan: StudyPlan, *, w: float, radius: float, noise: bool) -> None:
        """Refuse a plan that a later wave cannot follow with this flow.

        The receipt of that wave says how its flow was fitted, by its own plan. A flow from under another posture, or
        from cheaper training, would make it a lie.

        Args:
            w, radius: w and R by the plan (`shared.releases.receipt.mechanism`).
            noise: whether w and R must be the sealed ones as well.
        Raises: PlanChanged.
        """
        same = (self.dictionary, self.fitted_by, self.encoder) == (
            plan.dictionary.hash,
            fitted_by(plan),
            ENCODER_VERSION,
        )
        if noise:
            same = same and (self.w, self.radius) == (w, radius)
        if not same:
            raise PlanChanged(
                "a later wave must use the flow, posture, encoder, w and R that were sealed with the first release",
                given="a plan or an agent with others",
                next_step="Ask the study lead for a plan that says of [training] what the first one did (of version "
                '0.1: outcomes = "joint"), whose wave refreshes with refit = true, or for a new study.',
            )


@dataclass(frozen=True, kw_only=True)
class ReleasedRows:
    """Origin of each released row: the source row and the person that it was drawn from.

    Args:
        snapshot: keyed hash of the table that was read.
        source: for each released row, the checked source row it was drawn from; -1 where it was copied from an
            earlier release.
        persons: for each released row, its person's pseudonym; empty where the dictionary has no person column.
    """

    snapshot: str
    source: Sequence[int] = field(repr=False)
    persons: Sequence[str] = field(repr=False)

    def __post_init__(self) -> None:
        if self.persons and len(self.persons) != len(self.source):
            raise SchemaRefusal("every released row must have its person", given=f"{len(self.persons)} persons")

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        persons, snapshot, source = (
            canonical_list(_parts(self.persons)),
            canonical_json(self.snapshot),
            canonical_list(_parts(self.source)),
        )
        return b"".join((b'{"persons":', *persons, b',"snapshot":', snapshot, b',"source":', *source, b"}"))

    @classmethod
    def from_bytes(cls, data: bytes) -> ReleasedRows:
        """The reverse of `to_bytes`. Raises: SchemaRefusal."""
        body = parse_json(data, cap=CAP)
        try:
            return cls(snapshot=body["snapshot"], source=tuple(body["source"]), persons=tuple(body["persons"]))
        except (KeyError, TypeError):
            raise SchemaRefusal("the rows of a release must name snapshot, source and persons") from None


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """A long list, part after part: the texts of ten million at once would take more memory than a table of them."""
    return (values[first : first + _PART] for first in range(0, len(values), _PART))


def read_fit(folder: Path, hold: Hold) -> SealedFlow:
    """The fit that was sealed with a release. Raises: IntegrityRefusal (lost or edited), SchemaRefusal."""
    return SealedFlow.from_bytes(read_sealed(folder, hold, FIT))


def read_rows(folder: Path, hold: Hold) -> ReleasedRows:
    """Origins of the rows of a sealed release. Raises: IntegrityRefusal (lost or edited), SchemaRefusal."""
    return ReleasedRows.from_bytes(read_sealed(folder, hold, ROWS))


def read_sealed(folder: Path, hold: Hold, name: str) -> bytes:
    """A file that was sealed with a release. Raises: IntegrityRefusal (lost or edited)."""
    try:
        data = (folder / name).read_bytes()
    except FileNotFoundError:
        data = b""
    if sha256_hex(data) != hold.files.get(name):
        raise IntegrityRefusal(
            f"{name} of release {hold.release_id[:8]} must be the file that was sealed",
            given="another file" if data else "no file",
            next_step="Restore it from a backup: later waves and their comparison with this release need it.",
        )
    return data
