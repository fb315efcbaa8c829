"""first tables"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TYPES = {"big": sa.BigInteger, "int": sa.Integer, "bool": sa.Boolean, "text": sa.Text}
#: Table → its columns: a name, its type (a number is a text of at most that length), ? if nullable.
_COLUMNS = {
    "api_keys": """
        key_id:80 name:120 secret_hash:64 hint:32 created_at:big expires_at:big? revoked_at:big?
        last_used_at:big? budget_units:big? budget_period:8 models:text requests_per_minute:big?
        tokens_per_minute:big? spent_units:big reserved_units:big
    """,
    "batches": """
        batch_id:80 receipt_id:80 key_id:80 input_file_id:80 endpoint:40 model:120 status:16
        completion_window:8 extras:text terms:text errors:text created_at:big expires_at:big
        in_progress_at:big? finalizing_at:big? cancelling_at:big? ended_at:big?
        output_file_id:80? error_file_id:80? receipts_file_id:80?
        lines_total:int lines_done:int lines_failed:int
        reserved_units:big cost_units:big tokens_in:big tokens_out:big
    """,
    "files": """
        file_id:80 key_id:80 filename:255 purpose:24 size_bytes:big created_at:big expires_at:big?
    """,
    "requests": """
        request_id:80 receipt_id:80 key_id:80 created_at:big endpoint:40 model:120 state:16
        body_hash:64 idempotency_key:255? reserved_units:big begun_at:big? ended_at:big?
        cost_units:big tokens_in:big tokens_out:big first_token_ms:big? took_ms:big? error_code:64
        is_checked:bool? answer:text? answer_status:int keep_until:big
    """,
    "answers": """
        request_id:80 answer_index:int job_id:66 job_request:int operators:text tokens_in:big
        tokens_out:big cost_units:big finish:16 is_partial:bool
    """,
    "batch_answers": """
        batch_id:80 line_number:int answer_index:int job_id:66 job_request:int operators:text
        tokens:text logprobs:text finish:16 ended_at:big
    """,
    "usage_days": """
        key_id:80 day:10 model:120 requests:big failed:big tokens_in:big tokens_out:big
        cost_units:big
    """,
}
_KEYS = {
    "api_keys": "key_id",
    "batches": "batch_id",
    "files": "file_id",
    "requests": "request_id",
    "answers": "request_id answer_index",
    "batch_answers": "batch_id line_number answer_index",
    "usage_days": "key_id day model",
}
_UNIQUE = {
    "api_keys": ("secret_hash",),
    "batches": ("receipt_id",),
    "requests": ("receipt_id", "key_id idempotency_key"),
}
#: Table → the table of which its rows are a part, and by which column.
_PARTS = {
    "answers": ("requests", "request_id"),
    "batch_answers": ("batches", "batch_id"),
    "usage_days": ("api_keys", "key_id"),
}
_INDEXES = {
    "batches": ("key_id", "status"),
    "files": ("key_id",),
    "requests": ("created_at", "key_id", "state"),
    "answers": ("job_id",),
    "batch_answers": ("job_id",),
}


def upgrade() -> None:
    for table, columns in _COLUMNS.items():
        constraints = [sa.UniqueConstraint(*unique.split()) for unique in _UNIQUE.get(table, ())]
        if table in _PARTS:
            whole, column = _PARTS[table]
            there = f"{whole}.{column}"
            constraints.append(sa.ForeignKeyConstraint([column], [there], ondelete="CASCADE"))
        key = sa.PrimaryKeyConstraint(*_KEYS[table].split())
        op.create_table(table, *map(_column, columns.split()), *constraints, key)
        for column in _INDEXES.get(table, ()):
            op.create_index(f"ix_{table}_{column}", table, [column])
    op.create_index("ix_requests_body", "requests", ["key_id", "body_hash"])


def _column(described: str) -> sa.Column[object]:
    name, kind = described.rstrip("?").split(":")
    known = _TYPES[kind]() if kind in _TYPES else sa.String(length=int(kind))
    return sa.Column(name, known, nullable=described.endswith("?"))


def downgrade() -> None:
    for table in reversed(_COLUMNS):
        op.drop_table(table)
