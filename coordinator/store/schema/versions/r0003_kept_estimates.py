"""Sites' estimates that were worked out, and the questions that they answer."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

added = sa.MetaData()
sa.Table(
    "kept_questions",
    added,
    sa.Column("question", sa.LargeBinary(32), primary_key=True),
    sa.Column("study", sa.String(64), nullable=False, index=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
sa.Table(
    "kept_estimates",
    added,
    sa.Column("question", sa.LargeBinary(32), sa.ForeignKey("kept_questions.question"), primary_key=True),
    sa.Column("place", sa.LargeBinary(32), primary_key=True),
    sa.Column("site", sa.String(64), nullable=False),
    sa.Column("estimates", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)


def upgrade() -> None:
    """Add the tables, unless the store was taken back from this revision."""
    added.create_all(op.get_bind())


def downgrade() -> None:
    """Empty them: an earlier version would take nothing out of them when a release is withdrawn or deleted."""
    for table in reversed(added.sorted_tables):
        op.execute(table.delete())
