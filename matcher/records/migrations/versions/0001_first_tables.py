"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

from matcher.records.migrations.made import BIG, TEXT, create_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_table("swarm_peers", "address", address=255, is_self=sa.Boolean(), seen_at=BIG)
    create_table("cursor", "name", name=16, chain_id=BIG, task_registry=42, position=TEXT)
    create_table(
        "miners",
        "operator",
        **{"operator": 42, "owner": 42, "stake_units": BIG, "can_work": sa.Boolean()},
        **{"state": 16, "endpoint": 255, "first_seen_at": BIG, "last_seen_at": BIG},
    )
    create_table("models", "model_id", model_id=66, spec=TEXT, block_number=BIG)
    create_table(
        "orders",
        "job_id",
        sa.UniqueConstraint("order_hash"),
        **{"job_id": 66, "order_hash": 66, "requester": 42, "model_id": 66, "signed": TEXT},
        received_at=BIG,
    )
    op.create_index("ix_orders_model_id", "orders", ["model_id"])
    op.create_index("ix_orders_requester", "orders", ["requester"])
    create_table(
        "jobs",
        "job_id",
        sa.ForeignKeyConstraint(["job_id"], ["orders.job_id"], ondelete="CASCADE"),
        nullable=("paid_units", "refunded_units", "withheld_units"),
        **{"job_id": 66, "plan_hash": 66, "state": 16, "state_block": BIG, "stale": sa.Boolean()},
        **{"locked_units": BIG, "deadline_s": BIG, "final_at_s": BIG, "finished_at_s": BIG},
        **{"tokens_in": BIG, "tokens_out": BIG, "paid_units": BIG, "refunded_units": BIG},
        **{"withheld_units": BIG, "open_tx": 66, "deliver_tx": 66, "end_tx": 66, "failure": TEXT},
        **{"created_at": BIG, "updated_at": BIG},
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    stage = {"job_id": 66, "stage": sa.Integer()}
    key = "job_id stage"
    create_table("acceptances", key, _of_job(), **stage, expiry_s=BIG, signature=132)
    create_table("acks", "job_id", _of_job(), job_id=66, ack=TEXT, signature=132, received_at=BIG)
    create_table("receipts", key, _of_job(), **stage, signed=TEXT, collected_at=BIG)
    layers = {"layer_from": sa.Integer(), "layer_to": sa.Integer()}
    create_table("stages", key, _of_job(), **stage, operator=42, **layers, endpoint=255)
    op.create_index("ix_stages_operator", "stages", ["operator"])


def downgrade() -> None:
    for table in ("stages", "receipts", "acks", "acceptances", "jobs", "orders", "models"):
        op.drop_table(table)
    for table in ("miners", "cursor", "swarm_peers"):
        op.drop_table(table)


def _of_job() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], ondelete="CASCADE")
