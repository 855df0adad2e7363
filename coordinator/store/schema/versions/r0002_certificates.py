"""Every certificate that a site was given."""

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


def upgrade() -> None:
    """Add the table; it is there already in a store that was taken back to 0001."""
    added.create_all(op.get_bind())


def downgrade() -> None:
    """It stays: 0.2.0 does not look at it, and what is in it is not lost."""
