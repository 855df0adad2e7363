"""The tables of version 0.2.0."""

from alembic import op

from coordinator.store.schema.tables_of_0001 import meta

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them where they are not there."""
    meta.create_all(op.get_bind())
