"""Which tables do these migrations make?"""

from client.gateway.records.tables import METADATA
from core.runtime.database import run_migrations

run_migrations(METADATA)
