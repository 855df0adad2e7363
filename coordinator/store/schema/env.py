"""Run by Alembic: revisions on the connection of whoever asks, within their transaction."""

from alembic import context

if hasattr(context, "config"):  # whoever only imports it has asked for nothing
    context.configure(connection=context.config.attributes["connection"])
    with context.begin_transaction():
        context.run_migrations()
