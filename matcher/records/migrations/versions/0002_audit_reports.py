"""What auditors say of operators."""

from alembic import op

from matcher.records.migrations.made import BIG, TEXT, create_table

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = {"auditor": 42, "sequence": BIG, "signed": TEXT, "received_at": BIG}
    create_table("audit_reports", "auditor", **columns)


def downgrade() -> None:
    op.drop_table("audit_reports")
