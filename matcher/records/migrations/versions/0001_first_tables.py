"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "swarm_peers",
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("is_self", sa.Boolean(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("address"),
    )
    op.create_table(
        "cursor",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("chain_id", sa.BigInteger(), nullable=False),
        sa.Column("task_registry", sa.String(length=42), nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "miners",
        sa.Column("operator", sa.String(length=42), nullable=False),
        sa.Column("owner", sa.String(length=42), nullable=False),
        sa.Column("stake_units", sa.BigInteger(), nullable=False),
        sa.Column("can_work", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("endpoint", sa.String(length=255), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("operator"),
    )
    op.create_table(
        "models",
        sa.Column("model_id", sa.String(length=66), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("model_id"),
    )
    op.create_table(
        "orders",
        sa.Column("job_id", sa.String(length=66), nullable=False),
        sa.Column("order_hash", sa.String(length=66), nullable=False),
        sa.Column("requester", sa.String(length=42), nullable=False),
        sa.Column("model_id", sa.String(length=66), nullable=False),
        sa.Column("signed", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
        sa.UniqueConstraint("order_hash"),
    )
    with op.batch_alter_table("orders", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_orders_model_id"), ["model_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_orders_requester"), ["requester"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(length=66), nullable=False),
        sa.Column("plan_hash", sa.String(length=66), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_block", sa.BigInteger(), nullable=False),
        sa.Column("stale", sa.Boolean(), nullable=False),
        sa.Column("locked_units", sa.BigInteger(), nullable=False),
        sa.Column("deadline_s", sa.BigInteger(), nullable=False),
        sa.Column("final_at_s", sa.BigInteger(), nullable=False),
        sa.Column("finished_at_s", sa.BigInteger(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("paid_units", sa.BigInteger(), nullable=True),
        sa.Column("refunded_units", sa.BigInteger(), nullable=True),
        sa.Column("withheld_units", sa.BigInteger(), nullable=True),
        sa.Column("open_tx", sa.String(length=66), nullable=False),
        sa.Column("deliver_tx", sa.String(length=66), nullable=False),
        sa.Column("end_tx", sa.String(length=66), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["orders.job_id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id"),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_state"), ["state"], unique=False)

    op.create_table(
        "acceptances",
        sa.Column("job_id", sa.String(length=66), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("expiry_s", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.String(length=132), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "stage"),
    )
    op.create_table(
        "acks",
        sa.Column("job_id", sa.String(length=66), nullable=False),
        sa.Column("ack", sa.Text(), nullable=False),
        sa.Column("signature", sa.String(length=132), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "receipts",
        sa.Column("job_id", sa.String(length=66), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("signed", sa.Text(), nullable=False),
        sa.Column("collected_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "stage"),
    )
    op.create_table(
        "stages",
        sa.Column("job_id", sa.String(length=66), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("operator", sa.String(length=42), nullable=False),
        sa.Column("layer_from", sa.Integer(), nullable=False),
        sa.Column("layer_to", sa.Integer(), nullable=False),
        sa.Column("endpoint", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "stage"),
    )
    with op.batch_alter_table("stages", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_stages_operator"), ["operator"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("stages", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_stages_operator"))

    op.drop_table("stages")
    op.drop_table("receipts")
    op.drop_table("acks")
    op.drop_table("acceptances")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_state"))

    op.drop_table("jobs")
    with op.batch_alter_table("orders", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_orders_requester"))
        batch_op.drop_index(batch_op.f("ix_orders_model_id"))

    op.drop_table("orders")
    op.drop_table("models")
    op.drop_table("miners")
    op.drop_table("cursor")
    op.drop_table("swarm_peers")
