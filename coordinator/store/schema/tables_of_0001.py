"""The tables of version 0.2.0, as they were: what later revisions begin from. Never changed."""

import sqlalchemy as sa

__all__ = ["meta"]

meta = sa.MetaData()
sa.Table(
    "analyst_tokens",
    meta,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("studies", sa.Text, nullable=False),
    sa.Column("token_sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("made", sa.Date, nullable=False),
    sa.Column("expires", sa.Date, nullable=False),
    sa.Column("revoked", sa.Date),
)
sa.Table(
    "answers",
    meta,
    sa.Column("result_id", sa.String(64), primary_key=True),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "answers_kept",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("result_id", sa.String(64), nullable=False, unique=True),
    sa.Column("analyst", sa.String(64), nullable=False, index=True),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("result", sa.Integer),
)
sa.Table(
    "arrived",
    meta,
    sa.Column("serial", sa.String(64), primary_key=True),
    sa.Column("site", sa.String(64), nullable=False),
)
sa.Table(
    "asked",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("study", sa.String(64), nullable=False, index=True),
    sa.Column("analyst", sa.String(64), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("label", sa.String(16), nullable=False),
    sa.Column("planned", sa.Text, nullable=False),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("subject", sa.String(64), nullable=False),
)
sa.Table(
    "clock_words",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "comparisons",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("study", sa.String(64), primary_key=True),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "declined",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("decision", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "gaps",
    meta,
    sa.Column("bundle_sha256", sa.String(64), primary_key=True),
    sa.Column("release_id", sa.String(64), nullable=False),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", sa.String(64), nullable=False),
    sa.Column("log_index", sa.Integer, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "home",
    meta,
    sa.Column("id", sa.String(32), primary_key=True),
)
sa.Table(
    "invitations",
    meta,
    sa.Column("token_sha256", sa.String(64), primary_key=True),
    sa.Column("site", sa.String(64), nullable=False),
    sa.Column("studies", sa.Text, nullable=False),
    sa.Column("expires", sa.Date, nullable=False),
    sa.Column("used_for", sa.String(64)),
)
sa.Table(
    "log",
    meta,
    sa.Column("index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("leaf", sa.LargeBinary(32), nullable=False),
    sa.Column("peaks", sa.LargeBinary, nullable=False),
    sa.Column("root", sa.String(64), nullable=False),
)
sa.Table(
    "plans",
    meta,
    sa.Column("study", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("hash", sa.String(64), nullable=False, unique=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
)
sa.Table(
    "quarantine",
    meta,
    sa.Column("bundle_sha256", sa.String(64), primary_key=True),
    sa.Column("release_id", sa.String(64), nullable=False),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", sa.String(64), nullable=False),
    sa.Column("code", sa.String(32), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "reminders",
    meta,
    sa.Column("study", sa.String(64), primary_key=True),
    sa.Column("wave", sa.Integer, primary_key=True),
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "results",
    meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("content", sa.String(64), nullable=False, unique=True),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("used", sa.Text, nullable=False),
    sa.Column("numbers", sa.Text, nullable=False),
    sa.Column("figure", sa.Text, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Index("results_by_question", "study", "question"),
)
sa.Table(
    "retired_keys",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("until", sa.Integer, primary_key=True),
    sa.Column("role", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("public_key", sa.String(64), nullable=False),
)
sa.Table(
    "revoked",
    meta,
    sa.Column("serial", sa.String(64), primary_key=True),
    sa.Column("site", sa.String(64), nullable=False),
    sa.Column("log_index", sa.Integer, nullable=False),
)
sa.Table(
    "round_asked",
    meta,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("study", sa.String(64), nullable=False, index=True),
    sa.Column("plan_hash", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("envelope", sa.LargeBinary(16384), nullable=False),
    sa.Column("content", sa.LargeBinary(4194304), nullable=False),
    sa.UniqueConstraint("study", "plan_hash", "kind", "round"),
)
sa.Table(
    "site_clocks",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("offset", sa.Float, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "sites",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("studies", sa.Text, nullable=False),
    sa.Column("request_sha256", sa.String(64), nullable=False),
    sa.Column("csr_pem", sa.Text, nullable=False),
    sa.Column("certificate_pem", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)
sa.Table(
    "standing_revocations",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("standing", sa.String(64), primary_key=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "tree_heads",
    meta,
    sa.Column("size", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("root", sa.String(64), nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
)
sa.Table(
    "anchors",
    meta,
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), primary_key=True, autoincrement=False),
    sa.Column("site", sa.String(64), nullable=False, index=True),
    sa.Column("line", sa.Integer, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("head", sa.String(64), nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("site", "line", "seq"),
)
sa.Table(
    "deputies",
    meta,
    sa.Column("site", sa.String(64), sa.ForeignKey("sites.site"), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("deputy_of", sa.String(64), nullable=False),
    sa.Column("until", sa.String(10), nullable=False),
)
sa.Table(
    "distrusted",
    meta,
    sa.Column("bundle_sha256", sa.String(64), primary_key=True),
    sa.Column("site", sa.String(64), nullable=False),
    sa.Column("since", sa.String(10), nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "grants",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("granted", sa.Boolean, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
sa.Table(
    "key_changes",
    meta,
    sa.Column("site", sa.String(64), sa.ForeignKey("sites.site"), primary_key=True),
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), unique=True),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "lead_changes",
    meta,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
sa.Table(
    "releases",
    meta,
    sa.Column("release_id", sa.String(64), primary_key=True),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("plan_hash", sa.String(64), sa.ForeignKey("plans.hash"), nullable=False),
    sa.Column("plan_version", sa.Integer, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", sa.String(64), sa.ForeignKey("sites.site"), nullable=False),
    sa.Column("bundle_sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("bundle_bytes", sa.BigInteger, nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("receipt", sa.LargeBinary, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
    sa.Column("log_root", sa.String(64), nullable=False),
    sa.Column("accepted_day", sa.String(10), nullable=False),
    sa.UniqueConstraint("study", "wave", "site"),
)
sa.Table(
    "restorations",
    meta,
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), primary_key=True, autoincrement=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
)
sa.Table(
    "round_of",
    meta,
    sa.Column("asked", sa.Integer, sa.ForeignKey("round_asked.number"), primary_key=True),
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("envelope", sa.LargeBinary(16384)),
    sa.Column("content", sa.LargeBinary(4194304)),
    sa.Column("key", sa.String(64)),
)
sa.Table(
    "site_keys",
    meta,
    sa.Column("site", sa.String(64), sa.ForeignKey("sites.site"), primary_key=True),
    sa.Column("role", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("public_key", sa.String(64), nullable=False),
    sa.UniqueConstraint("site", "public_key"),
)
sa.Table(
    "wave_events",
    meta,
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), primary_key=True, autoincrement=False),
    sa.Column("study", sa.String(64), nullable=False, index=True),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("missing", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "withdrawals",
    meta,
    sa.Column("bundle_sha256", sa.String(64), primary_key=True),
    sa.Column("release_id", sa.String(64), nullable=False, index=True),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", sa.String(64), sa.ForeignKey("sites.site"), nullable=False),
    sa.Column("reason_code", sa.String(16), nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
    sa.Column("log_root", sa.String(64), nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "reanchors",
    meta,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("fingerprint", sa.String(32), nullable=False),
    sa.Column("left_index", sa.Integer, sa.ForeignKey("anchors.log_index"), nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False),
)
sa.Table(
    "standing",
    meta,
    sa.Column("release_id", sa.String(64), sa.ForeignKey("releases.release_id"), primary_key=True),
    sa.Column("standing", sa.LargeBinary, nullable=False),
)
