"""Nothing is assigned after construction: an object has all its attributes once it is made."""

from __future__ import annotations

import ast

import pytest

from tests.house import construction

#: Attributes of libraries' objects and classes, which those declare.
FOREIGN = frozenset(
    """
    __annotations__ __doc__ __name__ __signature__ __wrapped__
    _UNIX_SOCKET_PREFIX _make_process_args _network_backend _validate_dictionary
    argtypes restype argv stderr stdout isolation_level prec
    allow_bf16_reduced_precision_reduction
    filters globals lifespan_context openapi openapi_schema force_exit should_exit
    col_cost_ col_lower_ col_upper_ col_value format_ index_ integrality_ num_col_ num_row_
    row_lower_ row_upper_ start_ value_
    _attn_implementation decoder device dtype ffn_hidden_size initializer_range is_initialized
    kv_n_heads last_hidden_state moe_num_experts moe_top_k num_hidden_layers pad_token_id
    padding_idx pre_tokenizer
    """.split()  # noqa: SIM905 - a table
)


@pytest.fixture(scope="module")
def late() -> list[tuple[str, str]]:
    return construction.late()


def test_nothing_is_assigned_after_construction(late: list[tuple[str, str]]) -> None:
    found = {f"{where}.{name}" for where, name in late if name not in FOREIGN}
    assert found == set(), "declare it in `__init__`, or hand it over there"


def test_every_foreign_attribute_is_still_assigned(late: list[tuple[str, str]]) -> None:
    assert {name for _, name in late} >= FOREIGN


def test_late_assignments_are_found() -> None:
    tree = ast.parse("""
class Base:
    inherited: int

class Meter(Base):
    limit = 3
    __slots__ = ("slot",)

    def __init__(self, other):
        self.total, self.parts = 0, []
        object.__setattr__(self, "frozen", 1)
        other.shown = True

    def add(self, other):
        self.total += 1
        self.slot = self.frozen = self.inherited = 2
        self.last, other.mark = 1, 2
""")
    reader = construction.Reader("made_up").read(tree)
    _, meter = reader.classes
    assert meter.declared >= {"limit", "slot", "total", "parts", "frozen", "add"}
    assert meter.set_later - meter.declared == {"inherited", "last"}
    assert reader.set_on_others == {"shown", "mark"}
