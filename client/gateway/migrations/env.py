"""Over which connection do migrations run? The one that `client.gateway.migrate` hands over."""

from alembic import context

from client.gateway.tables import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
