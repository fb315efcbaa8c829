"""Audits that the matcher pays: lots, findings, payments."""

import sqlalchemy as sa
from alembic import op

from matcher.records.migrations.made import BIG, TEXT, create_table

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("beacon", sa.String(length=66), nullable=False, server_default="")
    )
    create_table("kept", "name", name=32, value=TEXT)
    create_table("audited_jobs", "job_id", job_id=66, fallen=TEXT)
    create_table(
        "audit_lots",
        "job_id request",
        nullable=("payment",),
        **{"job_id": 66, "request": BIG, "auditor": 42, "fee_units": BIG, "drawn_at": BIG},
        **{"due_at": BIG, "found": 16, "stage": sa.Integer(), "signature": 132, "found_at": BIG},
        payment=BIG,
    )
    for column in ("auditor", "drawn_at", "payment"):
        op.create_index(f"ix_audit_lots_{column}", "audit_lots", [column])
    create_table(
        "audit_payments",
        "number",
        sa.UniqueConstraint("tx_hash"),
        **{"number": sa.Integer(), "auditor": 42, "amount_units": BIG, "prepared": TEXT},
        **{"tx_hash": 66, "state": 16, "is_final": sa.Boolean(), "created_at": BIG},
    )


def downgrade() -> None:
    for table in ("audit_payments", "audit_lots", "audited_jobs", "kept"):
        op.drop_table(table)
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("beacon")
