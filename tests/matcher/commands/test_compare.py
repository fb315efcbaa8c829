"""Are two matchers' views compared by what machines sign, and is the network drawn whole?"""

from __future__ import annotations

from typing import Any

from matcher.commands.compare import differences, network_dot


def machine(operator: str, **changes: Any) -> dict[str, Any]:
    values = {
        "operator": operator,
        "shortId": f"mnr_{operator}",
        "state": "SERVING",
        "alive": True,
        "layers": [0, 4],
        "sequence": 7,
        "ageMs": 500,
        "tauMsPerLayer": 1.5,
    }
    return values | changes


def test_the_same_record_seen_at_another_age_is_no_difference() -> None:
    newer = machine("a", sequence=9, ageMs=20)
    assert differences([machine("a")], [newer]) == []


def test_what_only_one_knows_or_knows_otherwise_is_told_from_both_sides() -> None:
    ours = [machine("a"), machine("b"), machine("c")]
    theirs = [machine("b", layers=[4, 8]), machine("c", alive=False), machine("d", layers=None)]
    found = {row.operator: (row.here, row.there) for row in differences(ours, theirs)}
    assert sorted(found) == ["a", "b", "c", "d"]
    assert found["a"][1] == found["d"][0] == "unknown"
    assert "layers 0-3" in found["b"][0]
    assert "layers 4-7" in found["b"][1]
    assert found["c"][1].startswith("GONE")


def test_every_machine_and_every_link_of_a_chain_is_drawn_once() -> None:
    stages = [{"operator": "a"}, {"operator": "b"}]
    drawn = network_dot(
        [machine("b", layers=[4, 8]), machine("a"), machine("c", layers=None, alive=False)],
        [{"stages": stages, "latencyMs": 12.34}],
    )
    assert drawn.index("mnr_a\\nlayers 0-3") < drawn.index("mnr_b\\nlayers 4-7")
    assert drawn.count('"mnr_a" -> "mnr_b"') == 1
    assert "12.3 ms" in drawn
    assert "dashed" in drawn
    assert drawn.startswith("digraph") and drawn.endswith("}")
