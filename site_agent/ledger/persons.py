"""Persons whom the releases of a study touch: lists of pseudonyms beside the ledger, which holds their digests.

A release of new persons must contain nobody of an earlier one; persons who train and persons who are released stay
disjoint; and a person who withdrew is recognised. Pseudonyms belong to a *space* (column, mapping, format, key): lists
of two spaces are never compared.
"""

from __future__ import annotations

from collections.abc import Collection

from shared.base.canonical import canonical_json, sha256_hex
from shared.base.keys import SigningKey
from shared.errors import DifferencingRefusal, ParameterError, PolicyRefusal
from site_agent.ledger.files import listed, private_folder, storage_refusal, write_whole
from site_agent.ledger.holds import Hold, folder_of, require_word
from site_agent.ledger.state import Book
from site_agent.records.identifiers import NORMALISED

__all__ = [
    "LISTS",
    "as_written",
    "beside",
    "confirm_persons",
    "note_persons",
    "persons_of",
    "persons_withdrawn",
    "require_new",
    "require_present",
    "require_roles_kept",
    "require_same_persons",
    "still_present",
    "taken",
    "trained_of",
    "withdrawals",
]

POPULATION = "population.json"
TRAINED = "trained.json"
WITHDRAWN = "withdrawn"
LISTS = {"persons": POPULATION, "trained": TRAINED}


def persons_of(book: Book, hold: Hold) -> frozenset[str] | None:
    """Pseudonyms that a release touches; None where nobody knows them, or not yet.

    Raises: IntegrityRefusal, when the list is lost or is not the one that was bound at its drawing.
    """
    hold = book.hold(hold.release_id)
    return _bound(book, hold, POPULATION, hold.persons_sha256)


def trained_of(book: Book, hold: Hold) -> frozenset[str] | None:
    """Pseudonyms of those who only trained its flow; None as of `persons_of`."""
    return _bound(book, hold, TRAINED, hold.trained_sha256)


def _bound(book: Book, hold: Hold, name: str, digest: str) -> frozenset[str] | None:
    # A list that was deleted when the site left the study is not missing: its charge counts against everybody.
    if not digest or hold.release_id in book.deleted:
        return None
    # Told apart by something else than in the latest draw, the same person would look like two.
    if hold.space != next(other.space for other in reversed(book.of(hold.study)) if other.persons_sha256):
        return None
    return listed(folder_of(book.path, hold) / name, digest, f"the list of persons of release {hold.release_id[:8]}")


def _out(book: Book, hold: Hold) -> list[Hold]:
    """The other releases of its study that have left, or still may."""
    return [
        other
        for other in book.of(hold.study)
        if other.release_id != hold.release_id
        and other.drawn
        and not other.rounds
        and (other.phase != "burnt" or other.left)
    ]


def _earlier(book: Book, hold: Hold) -> frozenset[str]:
    lists = [some for other in _out(book, hold) for some in (persons_of(book, other), trained_of(book, other))]
    return frozenset().union(*(some for some in lists if some)) - persons_withdrawn(book, hold.study)


def require_same_persons(book: Book, hold: Hold, space: str, *, roles: bool = False) -> None:
    """Refuse to compare persons with those of earlier releases where they were told apart by something else.

    A release of everybody goes on all the same: it counts against everybody. Not where persons withdrew, because
    they could no longer be recognised; nor where some of them train and are never released.

    Args:
        space: by what persons are told apart now (`site_agent.records.table.person_space`).
        roles: whether the plan has persons who train and are never released (posture ``holdout``).
    Raises: DifferencingRefusal.
    """
    hold = book.hold(hold.release_id)
    given = "another person column, mapping, file format or snapshot.key"
    out = _out(book, hold)
    if (roles or any(other.trained_sha256 for other in out)) and any(other.space != space for other in out):
        raise DifferencingRefusal(
            "where some persons train and are never released, persons must be told apart as in the study's earlier "
            "releases",
            given=f"{given}, or a release whose persons the ledger has lost",
            next_step="Put it back as it was. Where it cannot be, ask the study lead for a new study: who has "
            "trained could not be told from who may be released.",
        )
    others = [other for other in book.of(hold.study) if other.space and other.space != space]
    if others and (hold.touches == "new" or book.gone.get(hold.study)):
        raise DifferencingRefusal(
            "persons must be told apart as in the study's earlier releases",
            given=given,
            next_step="Put it back as it was. Where it cannot be, a plan that refreshes counts its charges against "
            "everybody, but only while nobody has withdrawn.",
        )


def still_present(book: Book, hold: Hold, persons: Collection[str]) -> tuple[int, int]:
    """Number of persons of the study's earlier releases who are in a table, and number of all of them.

    Persons released or trained on count; those who withdrew, and those of releases that never left, do not.

    Args:
        persons: pseudonyms of everybody in the table.
    Raises: IntegrityRefusal (a list of persons is lost or was edited).
    """
    earlier = _earlier(book, book.hold(hold.release_id))
    return len(earlier.intersection(persons)), len(earlier)


def require_present(book: Book, hold: Hold, persons: Collection[str], *, share: float, snapshot: str) -> None:
    """Refuse a table from which the persons of earlier releases have vanished: somebody rewrote identifiers, or
    has signed that these are other persons (`confirm_persons`).

    Args:
        persons: pseudonyms of everybody in the table.
        share: least share of the earlier persons.
        snapshot: keyed hash of the table, which a person's word must be about.
    Raises: DifferencingRefusal; IntegrityRefusal (a list of persons is lost or was edited).
    """
    there, earlier = still_present(book, hold, persons)
    known = book.hold(hold.release_id)
    if there < share * earlier and (known.confirmed, known.confirmed_table) != (hold.wave, snapshot):
        raise DifferencingRefusal(
            f"at least {100 * share:g} % of the persons of the study's earlier releases must still be in the table",
            given=f"{there} of {earlier}",
            next_step="The reservation is kept and nothing was drawn. Where identifiers were rewritten, map them "
            "back, or ask the study lead for a new study. Only where these are other persons: site-agent data "
            f"confirm-persons {hold.study} --as NAME --reason WHY.",
        )


def confirm_persons(
    book: Book,
    hold: Hold,
    *,
    there: int,
    earlier: int,
    snapshot: str,
    name: str,
    reason: str,
    key: SigningKey | None = None,
) -> Hold:
    """Note a person's word that a table without earlier persons holds others: for this wave and this table alone.

    Args:
        there, earlier: what `still_present` counted.
        snapshot: keyed hash of the table that was looked at.
        name: of the approver, whose `key` signs the entry.
        reason: why they are others, in a few words.
    Raises: ParameterError (no reason); StateRefusal, unless the reservation waits for its draw.
    """
    if not reason.strip():
        raise ParameterError("a reason must say something", given="blank text")
    wave = book.hold(hold.release_id).wave
    body = {"release_id": hold.release_id, "wave": wave, "name": name, "reason": reason}
    counted = {"present": there, "earlier": earlier, "snapshot": snapshot}
    book.append("persons_confirmed", body, person=key, record=counted)
    return book.holds[hold.release_id]


def require_roles_kept(
    book: Book, hold: Hold, persons: Collection[str], trained: Collection[str], *, flow_of: str = ""
) -> None:
    """Refuse to release who trained before, or to fit on who was released before: `start_drawing` asks it too.

    Args:
        persons: pseudonyms of those who would be drawn.
        trained: of those whom this release is fitted on; nobody where a sealed flow is used again.
        flow_of: the release whose flow that is; blank for none.
    Raises: PolicyRefusal; IntegrityRefusal (a list of persons is lost or was edited).
    """
    hold = book.hold(hold.release_id)
    # A flow may be of a release that was given up since. Of a ledger from before there is no list: who trained
    # follows from the pseudonym then, and `require_same_persons` holds these to be the same.
    others = {other.release_id: other for other in _out(book, hold)} | (
        {flow_of: book.hold(flow_of)} if flow_of else {}
    )
    wrong = 0
    for other in others.values():
        wrong += len((trained_of(book, other) or frozenset()).intersection(persons))
        wrong += len((persons_of(book, other) or frozenset()).intersection(trained)) if trained else 0
    if wrong:
        raise PolicyRefusal(
            "who trains and who is released must stay as it was in this study's earlier releases",
            given=f"{wrong} persons who would change",
            next_step="The reservation is kept and nothing was drawn. Ask the study lead for a new study.",
        )


def as_written(book: Book, study: str) -> bool:
    """True if a study's pseudonyms are of identifiers as written in the file, not of normalised ones.

    This stays so if its first pseudonyms were made before identifiers were normalised
    (`site_agent.records.identifiers`): otherwise everybody would look new.
    """
    spaces = [hold.space for hold in book.of(study) if hold.space]
    return study in book.written or any(not space.startswith(NORMALISED) for space in spaces)


def taken(book: Book, hold: Hold) -> frozenset[str]:
    """Pseudonyms barred from a release of new persons (`shared.privacy.composition`). Raises: IntegrityRefusal."""
    hold = book.hold(hold.release_id)
    shared = beside(book, hold)
    found = [persons_of(book, other) for other in book.of(hold.study) if other.release_id not in shared]
    return frozenset().union(*(some for some in found if some is not None))


def require_new(repeated: int) -> None:
    """Refuse persons who were touched before, of whom there are so many. Raises: DifferencingRefusal."""
    if repeated:
        raise DifferencingRefusal(
            "a release of new persons must hold nobody whom an earlier release of the study has touched",
            given=f"{repeated} such persons",
            next_step="The reservation is kept. Report it: the agent leaves them out by itself.",
        )


def persons_withdrawn(book: Book, study: str) -> frozenset[str]:
    """Pseudonyms of all who withdrew from a study. Raises: IntegrityRefusal."""
    digest = book.gone.get(study, "")
    path = book.path.parent / WITHDRAWN / f"{digest}.json"
    what = f"the list of persons who withdrew from {study}"
    return listed(path, digest, what, "who may be drawn") if digest else frozenset()


def withdrawals(book: Book) -> int:
    """How many withdrawals of persons there are, over all studies, by the lists that the ledger names.

    Raises: IntegrityRefusal, when one of the lists is lost or was edited.
    """
    return sum(len(persons_withdrawn(book, study)) for study in sorted(book.gone))


def beside(book: Book, hold: Hold) -> set[str]:
    """Ids of the charges whose persons a release of new persons may draw.

    They are trainings, and releases that were burnt or rejected before this one was reserved.
    A training charges its persons, and releases none of them.
    """
    return {
        other.release_id
        for other in book.of(hold.study)
        if other.persons_sha256 and (other.rounds or 0 < other.closed_seq < hold.reserved_seq)
    }


def note_persons(
    book: Book, study: str, persons: Collection[str], *, name: str = "", key: SigningKey | None = None
) -> int:
    """Note that persons withdrew from a study: pseudonyms in a file of the site, their number in the ledger.

    Args:
        name: of the approver who notes it, whose `key` signs the entry.
    Returns: how many were not noted before.
    Raises: IntegrityRefusal (the list is lost or was edited); StorageRefusal.
    """
    require_word(study, "study")
    before = persons_withdrawn(book, study)
    everybody = before | set(persons)
    added = len(everybody) - len(before)
    if added:
        data = canonical_json(sorted(everybody))
        digest = sha256_hex(data)
        # Named by its content: a crash before the entry leaves a file that nothing names, and the old one.
        folder = book.path.parent / WITHDRAWN
        try:
            private_folder(folder)
        except OSError as error:
            raise storage_refusal(folder.name, error) from error
        write_whole(folder / f"{digest}.json", data, "ledger.withdrawn")
        counted = {"added": added, "count": len(everybody)}
        body = {"study": study, "name": name, "sha256": digest}
        body |= {} if as_written(book, study) else {"identifiers": "normalised"}
        book.append("persons_withdrew", body, person=key, record=counted)
    return added
