"""requests and batches say which gateway works on them"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Not in batch mode, which makes `requests` anew: all answers would go, as they belong to rows of
# the old table.


def upgrade() -> None:
    for table in ("requests", "batches"):
        column = sa.Column("gateway_id", sa.String(length=80), nullable=False, server_default="")
        op.add_column(table, column)


def downgrade() -> None:
    for table in ("requests", "batches"):
        op.drop_column(table, "gateway_id")
