"""How is a table written for a spreadsheet?"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

#: What a spreadsheet would read as a formula.
_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A line of names and a line for each row; no text begins a formula."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(head)
    table.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_BEGINS_FORMULA) else value
