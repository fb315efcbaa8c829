"""Audits that the matcher pays: lots, findings, payments."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("beacon", sa.String(length=66), nullable=False, server_default="")
    )
    op.create_table(
        "kept",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "audited_jobs",
        sa.Column("job_id", sa.String(length=66), nullable=False),
        sa.Column("fallen", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "audit_lots",
        sa.Column("job_id", sa.String(length=66), nullable=False),
        sa.Column("request", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("auditor", sa.String(length=42), nullable=False),
        sa.Column("fee_units", sa.BigInteger(), nullable=False),
        sa.Column("drawn_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("found", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("signature", sa.String(length=132), nullable=False),
        sa.Column("found_at", sa.BigInteger(), nullable=False),
        sa.Column("payment", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "request"),
    )
    for column in ("auditor", "drawn_at", "payment"):
        op.create_index(f"ix_audit_lots_{column}", "audit_lots", [column])
    op.create_table(
        "audit_payments",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("auditor", sa.String(length=42), nullable=False),
        sa.Column("amount_units", sa.BigInteger(), nullable=False),
        sa.Column("prepared", sa.Text(), nullable=False),
        sa.Column("tx_hash", sa.String(length=66), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("is_final", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("tx_hash"),
    )


def downgrade() -> None:
    for table in ("audit_payments", "audit_lots", "audited_jobs", "kept"):
        op.drop_table(table)
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("beacon")
