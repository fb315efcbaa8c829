"""What auditors say of operators."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_reports",
        sa.Column("auditor", sa.String(length=42), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("signed", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("auditor"),
    )


def downgrade() -> None:
    op.drop_table("audit_reports")
