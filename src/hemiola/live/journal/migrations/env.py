"""Run by Alembic, on the connection and inside the transaction that `live.journal.tables` hands it."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,
)
context.run_migrations()
