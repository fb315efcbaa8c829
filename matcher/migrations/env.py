"""Which tables do these migrations make?"""

from core.runtime.database import run_migrations
from matcher.tables import METADATA

run_migrations(METADATA)
