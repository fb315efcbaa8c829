"""responses are kept for a key that goes on from them"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("response_id", sa.String(length=80), primary_key=True, nullable=False),
        sa.Column("key_id", sa.String(length=80), nullable=False, index=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("previous_id", sa.String(length=80), nullable=True),
        sa.Column("items", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("responses")
