"""kept answers are found by an index"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEPT = sa.text("keep_until > 0")


def upgrade() -> None:
    op.create_index(
        "ix_requests_kept",
        "requests",
        ["keep_until"],
        unique=False,
        sqlite_where=KEPT,
        postgresql_where=KEPT,
    )


def downgrade() -> None:
    op.drop_index("ix_requests_kept", "requests")
