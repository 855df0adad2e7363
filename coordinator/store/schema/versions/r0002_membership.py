"""Certificates that sites were given and how each followed another; ends of members; sums; sign-ins; writers."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

added = sa.MetaData()
sa.Table(
    "site_certificates",
    added,
    sa.Column("serial", sa.String(64), primary_key=True),
    sa.Column("site", sa.String(64), nullable=False, index=True),
    sa.Column("membership", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("request", sa.String(64), nullable=False),
    sa.Column("csr_pem", sa.Text, nullable=False),
    sa.Column("certificate_pem", sa.Text, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("good_until", sa.String(10), nullable=False),
)
sa.Table("log", added, sa.Column("index", sa.Integer, primary_key=True))
sa.Table(
    "past_key_changes",
    added,
    sa.Column("site", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "renewals",
    added,
    sa.Column("serial", sa.String(64), primary_key=True),
    sa.Column("site", sa.String(64), nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
sa.Table(
    "authority_replacements",
    added,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
sa.Table(
    "study_ends",
    added,
    sa.Column("study", sa.String(64), primary_key=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
sa.Table(
    "deletions",
    added,
    sa.Column("plan_hash", sa.String(64), primary_key=True),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
sa.Table(
    "opened_sums",
    added,
    sa.Column("plan_hash", sa.String(64), primary_key=True),
    sa.Column("study", sa.String(64), nullable=False, index=True),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("document", sa.LargeBinary(4 << 20), nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
sa.Table(
    "sign_ins",
    added,
    sa.Column("place", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False, index=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("began", sa.Float(53), nullable=False),
    sa.Column("last", sa.Float(53), nullable=False),
    sa.Column("confirmed", sa.Float(53), nullable=False),
    sa.Column("ends", sa.Float(53), nullable=False, index=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
)
sa.Table(
    "writers",
    added,
    sa.Column("writer", sa.String(32), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("day", sa.String(10), nullable=False, index=True),
)


def upgrade() -> None:
    """Add the tables; they are there already in a store that was taken back to 0001."""
    added.create_all(op.get_bind())


def downgrade() -> None:
    """They stay: 0.2.0 does not look at them, and what is in them is not lost."""
