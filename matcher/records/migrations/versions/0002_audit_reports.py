"""What auditors say of operators."""

import sqlalchemy as sa
from alembic import op

from core.runtime.database import create_table

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
BIG, TEXT = sa.BigInteger(), sa.Text()


def upgrade() -> None:
    columns = {"auditor": 42, "sequence": BIG, "signed": TEXT, "received_at": BIG}
    create_table("audit_reports", "auditor", **columns)


def downgrade() -> None:
    op.drop_table("audit_reports")
