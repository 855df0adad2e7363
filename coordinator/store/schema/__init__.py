"""The coordinator's tables, and how SQLite is opened. What a row means stands in `coordinator.store.rows`.

The rules that must never break are constraints here, not only of the code: one release per (study, wave, site), one
row per bundle, one entry per place in the log.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.wire.message_limits import OPENED_CAP, ROUND_CAP

__all__ = [
    "analyst_tokens",
    "anchors",
    "answers",
    "answers_kept",
    "arrived",
    "asked",
    "clock_words",
    "comparisons",
    "deletions",
    "gaps",
    "home",
    "invitations",
    "kept_estimates",
    "kept_questions",
    "log",
    "meta",
    "opened_sums",
    "plans",
    "quarantine",
    "reanchors",
    "releases",
    "reminders",
    "restorations",
    "results",
    "retired",
    "revocations",
    "revoked",
    "round_asked",
    "round_of",
    "sign_ins",
    "site_certificates",
    "site_clocks",
    "site_keys",
    "sites",
    "sqlite_begin",
    "sqlite_connect",
    "standing",
    "tree_heads",
    "wave_events",
    "withdrawals",
    "writers",
]

meta = sa.MetaData()
_digest, _word, _hash = sa.String(64), sa.String(64), sa.LargeBinary(32)
plans = sa.Table(
    "plans",
    meta,
    sa.Column("study", _word, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("hash", _digest, nullable=False, unique=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
)
invitations = sa.Table(
    "invitations",
    meta,
    sa.Column("token_sha256", _digest, primary_key=True),
    sa.Column("site", _word, nullable=False),
    sa.Column("studies", sa.Text, nullable=False),
    sa.Column("expires", sa.Date, nullable=False),
    sa.Column("used_for", _digest),
)
sites = sa.Table(
    "sites",
    meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("studies", sa.Text, nullable=False),
    sa.Column("request_sha256", _digest, nullable=False),
    sa.Column("csr_pem", sa.Text, nullable=False),
    sa.Column("certificate_pem", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)
site_keys = sa.Table(
    "site_keys",
    meta,
    sa.Column("site", _word, sa.ForeignKey("sites.site"), primary_key=True),
    sa.Column("role", sa.String(16), primary_key=True),
    sa.Column("name", _word, primary_key=True),
    sa.Column("public_key", _digest, nullable=False),
    sa.UniqueConstraint("site", "public_key"),
)
revoked = sa.Table(
    "revoked",
    meta,
    sa.Column("serial", sa.String(64), primary_key=True),
    sa.Column("site", _word, nullable=False),
    sa.Column("log_index", sa.Integer, nullable=False),
)
# Certificates of sites that were shown here: from then on the invitation has served.
arrived = sa.Table(
    "arrived",
    meta,
    sa.Column("serial", sa.String(64), primary_key=True),
    sa.Column("site", _word, nullable=False),
)
log = sa.Table(
    "log",
    meta,
    sa.Column("index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("leaf", sa.LargeBinary(32), nullable=False),
    sa.Column("peaks", sa.LargeBinary, nullable=False),
    sa.Column("root", _digest, nullable=False),
)
anchors = sa.Table(
    "anchors",
    meta,
    # A ledger that begins anew uses its numbers again: the order of witnessing is the log's.
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), primary_key=True, autoincrement=False),
    sa.Column("site", _word, nullable=False, index=True),
    sa.Column("line", sa.Integer, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("head", _digest, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("site", "line", "seq"),
)
reanchors = sa.Table(
    "reanchors",
    meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("fingerprint", sa.String(32), nullable=False),
    sa.Column("left_index", sa.Integer, sa.ForeignKey("anchors.log_index"), nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False),
)
releases = sa.Table(
    "releases",
    meta,
    sa.Column("release_id", _word, primary_key=True),
    sa.Column("study", _word, nullable=False),
    sa.Column("plan_hash", _digest, sa.ForeignKey("plans.hash"), nullable=False),
    sa.Column("plan_version", sa.Integer, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", _word, sa.ForeignKey("sites.site"), nullable=False),
    sa.Column("bundle_sha256", _digest, nullable=False, unique=True),
    sa.Column("bundle_bytes", sa.BigInteger, nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("receipt", sa.LargeBinary, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
    sa.Column("log_root", _digest, nullable=False),
    sa.Column("accepted_day", sa.String(10), nullable=False),
    sa.UniqueConstraint("study", "wave", "site"),
)
standing = sa.Table(
    "standing",
    meta,
    sa.Column("release_id", _word, sa.ForeignKey("releases.release_id"), primary_key=True),
    sa.Column("standing", sa.LargeBinary, nullable=False),
)
revocations = sa.Table(
    "standing_revocations",
    meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("standing", _digest, primary_key=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
quarantine = sa.Table(
    "quarantine",
    meta,
    sa.Column("bundle_sha256", _digest, primary_key=True),
    sa.Column("release_id", _word, nullable=False),
    sa.Column("study", _word, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", _word, nullable=False),
    sa.Column("code", sa.String(32), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
retired = sa.Table(
    "retired_keys",
    meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("until", sa.Integer, primary_key=True),
    sa.Column("role", sa.String(16), primary_key=True),
    sa.Column("name", _word, primary_key=True),
    sa.Column("public_key", _digest, nullable=False),
)
withdrawals = sa.Table(
    "withdrawals",
    meta,
    sa.Column("bundle_sha256", _digest, primary_key=True),
    sa.Column("release_id", _word, nullable=False, index=True),
    sa.Column("study", _word, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", _word, sa.ForeignKey("sites.site"), nullable=False),
    sa.Column("reason_code", sa.String(16), nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
    sa.Column("log_root", _digest, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
wave_events = sa.Table(
    "wave_events",
    meta,
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), primary_key=True, autoincrement=False),
    sa.Column("study", _word, nullable=False, index=True),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("missing", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
reminders = sa.Table(
    "reminders",
    meta,
    sa.Column("study", _word, primary_key=True),
    sa.Column("wave", sa.Integer, primary_key=True),
    sa.Column("site", _word, primary_key=True),
    sa.Column("day", sa.String(10), nullable=False),
)
# Heads of the log that were signed: each acceptance has one, in its own transaction.
tree_heads = sa.Table(
    "tree_heads",
    meta,
    sa.Column("size", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("root", _digest, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
)
restorations = sa.Table(
    "restorations",
    meta,
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), primary_key=True, autoincrement=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
)
# What was acknowledged here once, by the coordinator's own signature, and is missing: told by its site after a restore.
gaps = sa.Table(
    "gaps",
    meta,
    sa.Column("bundle_sha256", _digest, primary_key=True),
    sa.Column("release_id", _word, nullable=False),
    sa.Column("study", _word, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", _word, nullable=False),
    sa.Column("log_index", sa.Integer, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
# When a site last compared what it had delivered with what it is told here.
comparisons = sa.Table(
    "comparisons",
    meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("study", _word, primary_key=True),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
results = sa.Table(
    "results",
    meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("content", _digest, nullable=False, unique=True),
    sa.Column("study", _word, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("used", sa.Text, nullable=False),
    sa.Column("numbers", sa.Text, nullable=False),
    sa.Column("figure", sa.Text, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Index("results_by_question", "study", "question"),
)
analyst_tokens = sa.Table(
    "analyst_tokens",
    meta,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", _word, nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("studies", sa.Text, nullable=False),
    sa.Column("token_sha256", _digest, nullable=False, unique=True),
    sa.Column("made", sa.Date, nullable=False),
    sa.Column("expires", sa.Date, nullable=False),
    sa.Column("revoked", sa.Date),
)
answers = sa.Table(
    "answers",
    meta,
    sa.Column("result_id", _word, primary_key=True),
    sa.Column("study", _word, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
# Who was first to ask for each answer, how large it is, so that no sum reads the documents, and what of it stands among
# the results that were handed out.
answers_kept = sa.Table(
    "answers_kept",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("result_id", _word, nullable=False, unique=True),
    sa.Column("analyst", _word, nullable=False, index=True),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("result", sa.Integer),
)
# Sites' estimates, so that no process fits them again, by the hashes of question and table
# (`coordinator.services.compute.kept_estimates`); and of each question the day on which it was last asked.
kept_questions = sa.Table(
    "kept_questions",
    meta,
    sa.Column("question", _hash, primary_key=True),
    sa.Column("study", _word, nullable=False, index=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
kept_estimates = sa.Table(
    "kept_estimates",
    meta,
    sa.Column("question", _hash, sa.ForeignKey("kept_questions.question"), primary_key=True),
    sa.Column("place", _hash, primary_key=True),
    sa.Column("site", _word, nullable=False),
    sa.Column("estimates", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,  # those of one question lie together
)
asked = sa.Table(
    "asked",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("study", _word, nullable=False, index=True),
    sa.Column("analyst", _word, nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("label", sa.String(16), nullable=False),
    sa.Column("planned", sa.Text, nullable=False),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("subject", _word, nullable=False),
)
site_clocks = sa.Table(
    "site_clocks",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("offset", sa.Float, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
# Every certificate that a site was given; the first one only from when another followed it.
site_certificates = sa.Table(
    "site_certificates",
    meta,
    sa.Column("serial", _word, primary_key=True),
    sa.Column("site", _word, nullable=False, index=True),
    # What tells this membership from an earlier one: the tokens and the request with which the site joined.
    sa.Column("membership", _digest, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),  # issued, shown, or replaced by another before it was shown
    sa.Column("request", _digest, nullable=False),  # SHA-256 of the signed request; blank for the first one
    sa.Column("csr_pem", sa.Text, nullable=False),
    sa.Column("certificate_pem", sa.Text, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("good_until", sa.String(10), nullable=False),  # last day, where a newer one was shown; blank: its own
)
clock_words = sa.Table(
    "clock_words",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("day", sa.String(10), nullable=False),
)
# Versions of plans whose releases were deleted when their retention was over, each with its entry in the log.
deletions = sa.Table(
    "deletions",
    meta,
    sa.Column("plan_hash", _digest, primary_key=True),
    sa.Column("study", _word, nullable=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
# What the sites of a plan opened together, and its entry in the log; empty once the study's releases are deleted.
opened_sums = sa.Table(
    "opened_sums",
    meta,
    sa.Column("plan_hash", _digest, primary_key=True),
    sa.Column("study", _word, nullable=False, index=True),
    sa.Column("sha256", _digest, nullable=False),
    sa.Column("document", sa.LargeBinary(OPENED_CAP), nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
# Of each process that writes to a database server, its last transaction: what it asks for where the answer was lost.
writers = sa.Table(
    "writers",
    meta,
    sa.Column("writer", sa.String(32), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("day", sa.String(10), nullable=False, index=True),
)
# Who is signed in with a browser, or is about to be: found and opened by a secret that is not here
# (`coordinator.web.sign_in.kept`).
sign_ins = sa.Table(
    "sign_ins",
    meta,
    sa.Column("place", _digest, primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False, index=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("began", sa.Float(53), nullable=False),
    sa.Column("last", sa.Float(53), nullable=False),
    sa.Column("confirmed", sa.Float(53), nullable=False),
    sa.Column("ends", sa.Float(53), nullable=False, index=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
)
home = sa.Table("home", meta, sa.Column("id", sa.String(32), primary_key=True))
_content = sa.LargeBinary(ROUND_CAP)
round_asked = sa.Table(
    "round_asked",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("study", _word, nullable=False, index=True),
    sa.Column("plan_hash", _digest, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("digest", _digest, nullable=False),
    sa.Column("envelope", sa.LargeBinary(16 << 10), nullable=False),
    sa.Column("content", _content, nullable=False),
    sa.UniqueConstraint("study", "plan_hash", "kind", "round"),
)
round_of = sa.Table(
    "round_of",
    meta,
    sa.Column("asked", sa.Integer, sa.ForeignKey("round_asked.number"), primary_key=True),
    sa.Column("site", _word, primary_key=True),
    sa.Column("envelope", sa.LargeBinary(16 << 10)),
    sa.Column("content", _content),
    sa.Column("key", _digest),  # under which it was taken: the site may have another one by the time it is read
)


def sqlite_connect(connection: Any, _: Any) -> None:
    """Durable before acknowledged: a write-ahead log, synchronous=FULL."""
    connection.isolation_level = None  # the driver must not begin transactions behind SQLAlchemy's back
    cursor = connection.cursor()
    for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def sqlite_begin(connection: sa.Connection) -> None:
    """Begin as a writer where the connection is to write."""
    # A writer that began as a reader could not wait for another writer: it would be sent away at once.
    writes = connection.get_execution_options().get("tributary_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
