"""keys have tags"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("tags", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("api_keys", "tags")
