"""Which tables do these migrations make?"""

from core.runtime.database import run_migrations
from matcher.records.tables import METADATA

run_migrations(METADATA)
