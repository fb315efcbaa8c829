"""Over which connection do migrations run? The one that `matcher.migrate` hands over."""

from alembic import context

from matcher.tables import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
