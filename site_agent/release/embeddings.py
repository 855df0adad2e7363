"""Encrypted coordinates of a network's held-out and released persons, stored for later waves if the plan says so.

By default nothing of a fit outlives its run. With ``keep = "sealed"`` the *frame* does, so that a wave that appends can
place new persons without a fit, and without a charge to anybody else. In ``frame.sealed``, bound by the release's seal
entry like every file of it, stand

* the model's coordinates and the attributes of the persons held out, with their pseudonyms: who has no guarantee;
* the private coordinates of everybody released so far, each with a number for life: they are noised already, and an
  edge drawn from two of them costs neither anything;
* one key for all pairs. Whether two persons have an edge is decided by a keyed number of their pair, so that it is the
  same in whichever wave it is asked.

The file is encrypted (ChaCha20-Poly1305) and tied to its study and release; the study's key lies in the site's key
folder. That protects a copy of the outbox, a backup of it or a disk of its own, and nothing against a reader of the
whole site folder. Deleting the key (`EmbeddingStore.forget`) deletes every frame of the study wherever copies of it
lie: so the key is in no backup, and a site that was put back from one releases nothing more of such a network until
somebody puts the key back.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.keys import write_private
from shared.errors import IntegrityRefusal, PlanChanged, SchemaRefusal, StateRefusal
from shared.plans.encoding import ENCODER_VERSION
from site_agent.config import frame_key
from site_agent.release import sealed_state

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan
    from site_agent.ledger.book import Hold, Ledger
    from site_agent.models.latent_space import LatentSpace

__all__ = ["EMBEDDING", "Embedding", "EmbeddingBase", "EmbeddingStore", "embedding_base", "placed_by"]

EMBEDDING = "frame.sealed"
FORMAT = "tributary-frame/1"
_MAGIC = b"TRIBFRM1"
_NONCE = 12
_ARRAYS = ("positions", "into", "attributes", "numbers", "private", "owners")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Embedding:
    """A fitted model and what was drawn through it. Its text form shows nobody.

    Args:
        model, d, directed, signs: of `site_agent.models.latent_space.LatentSpace`.
        positions: (m, q) coordinates of the persons held out.
        into: (m, q) where private ranks are placed: the same without what estimating each has added.
        attributes: (m, a) encoded attributes of the same persons.
        numbers: (k,) int32, of everybody released so far, ascending.
        private: (k, q + a) their private coordinates.
        owners: (k,) int32, the place in `releases` of the release that holds each.
        releases: ids of releases, in their order.
        key: of the pairs.
        frame_of: id of the release for which the model was fitted.
        placed_by: digest of what the plan says about it (`placed_by`).
        dictionary: hash of the dictionary that encoded the attributes.
        encoder: version of the encoder.
    """

    model: str
    d: int
    directed: bool
    signs: tuple[int, ...]
    positions: Any
    into: Any
    attributes: Any
    held: tuple[str, ...]
    numbers: Any
    private: Any
    owners: Any
    releases: tuple[str, ...]
    key: bytes
    frame_of: str
    placed_by: str
    dictionary: str
    encoder: int = ENCODER_VERSION

    def __repr__(self) -> str:
        return f"Frame({self.model}, d = {self.d})"

    @property
    def space(self) -> LatentSpace:
        """The model."""
        from site_agent.models.latent_space import LatentSpace

        return LatentSpace(
            model=self.model, d=self.d, directed=self.directed, positions=self.positions, signs=self.signs
        )

    def without(self, withdrawn: Collection[str], standing: Collection[str]) -> Embedding:
        """The frame without persons held out who withdrew, and without releases that do not stand any more."""
        stay = np.array([person not in withdrawn for person in self.held], dtype=bool)
        remaining = np.array([release in standing for release in self.releases], dtype=bool)[self.owners]
        return replace(
            self,
            positions=self.positions[stay],
            into=self.into[stay],
            attributes=self.attributes[stay],
            held=tuple(person for person, here in zip(self.held, stay, strict=True) if here),
            numbers=self.numbers[remaining],
            private=self.private[remaining],
            owners=self.owners[remaining],
        )

    def with_wave(self, release_id: str, numbers: Any, private: Any) -> Embedding:
        """The frame with the persons of one more release."""
        return replace(
            self,
            frame_of=self.frame_of or release_id,
            numbers=np.concatenate([self.numbers, numbers]).astype(np.int32),
            private=np.concatenate([self.private, private]),
            owners=np.concatenate([self.owners, np.full(len(numbers), len(self.releases))]).astype(np.int32),
            releases=(*self.releases, release_id),
        )

    def require_fits(self, plan: StudyPlan) -> None:
        """Refuse a plan whose waves cannot go on from this frame. Raises: PlanChanged."""
        if (self.placed_by, self.dictionary, self.encoder) != (placed_by(plan), plan.dictionary.hash, ENCODER_VERSION):
            raise PlanChanged(
                "a later wave must have the model, holdout, dictionary and encoder that its network's frame was made "
                "with",
                given="a plan or an agent with others",
                next_step="Ask the study lead for a plan with the first one's, or for a new study.",
            )

    def to_bytes(self) -> bytes:
        """An npz file without pickle."""
        said = {name: getattr(self, name) for name in ("model", "d", "directed", "frame_of", "placed_by", "dictionary")}
        meta = {
            "format": FORMAT,
            **said,
            "encoder": self.encoder,
            "signs": list(self.signs),
            "held": list(self.held),
            "releases": list(self.releases),
            "key": self.key.hex(),
        }
        sink = io.BytesIO()
        arrays = {name: np.asarray(getattr(self, name)) for name in _ARRAYS}
        text = np.frombuffer(canonical_json(meta), dtype=np.uint8)
        np.savez(sink, allow_pickle=False, meta=text, **arrays)  # type: ignore[arg-type]
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Embedding:
        """The reverse of `to_bytes`. Raises: SchemaRefusal."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as found:
                arrays = {name: found[name] for name in _ARRAYS}
                meta = parse_json(found["meta"].tobytes(), cap=sealed_state.CAP)
            if meta.pop("format") != FORMAT:
                raise ValueError
            for name in ("signs", "held", "releases"):
                meta[name] = tuple(meta[name])
            meta["key"] = bytes.fromhex(meta["key"])
            return cls(**arrays, **meta)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise SchemaRefusal(f"a sealed frame must have the form {FORMAT}", given=type(error).__name__) from None


@dataclass(frozen=True)
class EmbeddingStore:
    """The key of one study's frames, and what it encrypts.

    Args:
        home: the site's folder.
    """

    home: Path
    study: str

    @property
    def path(self) -> Path:
        """File of the key; absent before the first frame is sealed, and once the frames are deleted."""
        return frame_key(self.home, self.study)

    def seal(self, embedding: Embedding, release_id: str) -> bytes:
        """A frame as it lies on disk. Raises: StorageRefusal."""
        if not self.path.exists():
            write_private(self.path, secrets.token_bytes(32))
        nonce = secrets.token_bytes(_NONCE)
        cipher = ChaCha20Poly1305(self.path.read_bytes())
        return _MAGIC + nonce + cipher.encrypt(nonce, embedding.to_bytes(), self._tied(release_id))

    def open(self, data: bytes, release_id: str) -> Embedding:
        """The reverse of `seal`. Raises: IntegrityRefusal (no key, or another), SchemaRefusal."""
        start = len(_MAGIC) + _NONCE
        try:
            cipher = ChaCha20Poly1305(self.path.read_bytes())
            return Embedding.from_bytes(cipher.decrypt(data[len(_MAGIC) : start], data[start:], self._tied(release_id)))
        except (InvalidTag, ValueError, FileNotFoundError):
            raise IntegrityRefusal(
                f"{EMBEDDING} of release {release_id[:8]} must be what was sealed under this study's key",
                given="another file, or another key",
                next_step=f"Put {self.path.name} into keys/frames as it was then, from the former home or a copy of "
                "your own: no backup holds it. Without it ask the study lead for a new study.",
            ) from None

    def require(self, sealed: Path) -> None:
        """Refuse to go on without the key.

        Args:
            sealed: a frame of the study; it goes with the key where that is deleted.
        Raises: StateRefusal: once the frames are deleted, or where the site was put back from a backup.
        """
        if self.path.exists():
            return
        new = "ask the study lead for a new study: without the frame nobody can be added to this network."
        left = sealed.exists()
        raise StateRefusal(
            f"the network of study {self.study} must have its frame to go on from",
            given="one without its key: this site was put back from a backup, which holds none"
            if left
            else "none: it was deleted",
            next_step=f"Put {self.path.name} into keys/frames from the former home, or a copy of your own; else {new}"
            if left
            else new.capitalize(),
        )

    def files(self, ledger: Ledger) -> tuple[Path, ...]:
        """The sealed files of the study's frames that lie here."""
        found = [ledger.folder(hold) / EMBEDDING for hold in ledger.holds(self.study) if EMBEDDING in hold.files]
        return tuple(path for path in found if path.exists())

    def forget(self, ledger: Ledger) -> int:
        """Delete the key, and every frame of the study that lies here. Returns: how many frames lay here."""
        there = self.files(ledger)
        # The key first: from here on what is left of a frame is noise.
        self.path.unlink(missing_ok=True)
        for path in there:
            path.unlink()
        return len(there)

    def _tied(self, release_id: str) -> bytes:
        return canonical_json({"format": FORMAT, "study": self.study, "release_id": release_id})


@dataclass(frozen=True, kw_only=True)
class EmbeddingBase:
    """Starting point of a wave of a network that keeps its frame.

    Args:
        store: seals and opens frames.
        embedding: of the earlier release, without withdrawn persons and releases; None at the first wave.
        first: number of the next person.
    """

    store: EmbeddingStore
    embedding: Embedding | None = field(default=None, repr=False)
    first: int = 0


def embedding_base(plan: StudyPlan, ledger: Ledger, base: Hold | None) -> EmbeddingBase | None:
    """Starting point of a wave of this plan, before anything is charged; None if the plan keeps no frame.

    Args:
        base: the release that the wave builds on; None at the first wave.
    Raises: PlanChanged (earlier releases kept their frame and this plan does not, or the reverse), StateRefusal (it was
        deleted, or the site was restored from a backup, which holds no key), IntegrityRefusal.
    """
    holds = ledger.holds(plan.study)
    if base is not None and (EMBEDDING in base.files) != plan.release.sealed and plan.release.edges is not None:
        raise PlanChanged(
            "release.keep must stay what it was when the study's first network was released",
            given=f"a release that was {'sealed' if EMBEDDING in base.files else 'deleted'}",
            next_step="Ask the study lead for a plan with the first one's, or for a new study.",
        )
    if not plan.release.sealed:
        return None
    store, embedding = EmbeddingStore(ledger.path.parent, plan.study), None
    if base is not None:
        store.require(ledger.folder(base) / EMBEDDING)
        embedding = store.open(sealed_state.read_sealed(ledger.folder(base), base, EMBEDDING), base.release_id)
        embedding.require_fits(plan)
        standing = {hold.release_id for hold in holds if hold.state == "delivered"}
        embedding = embedding.without(ledger.persons_withdrawn(plan.study), standing)
    # Numbers of releases that were taken back are not given again: what they say may still lie with a reader.
    out = [hold for hold in holds if hold.may_be_out and hold.files]
    first = sum(len(sealed_state.read_rows(ledger.folder(hold), hold).persons) for hold in out)
    return EmbeddingBase(store=store, embedding=embedding, first=first)


def placed_by(plan: StudyPlan) -> str:
    """Digest of everything in a plan that decides what a frame is."""
    release: Mapping[str, Any] = plan.to_canonical()["release"]
    said = {name: release[name] for name in ("mechanism", "model", "d", "most", "directed")}
    return sha256_hex(canonical_json({**said, "fitted_by": sealed_state.fitted_by(plan)}))
