"""A session never promises more than its order allows, and its moves are those of the picture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.sessions import budget
from client.sessions.budget import Life, SessionBudget, Use

BUDGET = SessionBudget(
    requests=4, tokens_in=100, tokens_out=50, in_flight=2, opened_s=0, deadline_s=300
)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 60), st.integers(1, 30)),
        st.tuples(st.just("end"), st.integers(0, 60), st.integers(0, 30)),
        st.tuples(st.sampled_from(["retire", "break_off", "end_session"]), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(moves)
def test_what_is_spoken_for_never_exceeds_the_budget(plan: list[tuple[str, int, int]]) -> None:
    use, running, taken = Use(), list[tuple[int, int]](), [0, 0]
    for name, tokens_in, tokens_out in plan:
        before = use
        try:
            match name:
                case "begin":
                    use = budget.begin(use, BUDGET, tokens_in, tokens_out, 10)
                    running.append((tokens_in, tokens_out))
                case "end":
                    promised = running[-1] if running else (60, 30)
                    took = (min(tokens_in, promised[0]), min(tokens_out, promised[1]))
                    use = budget.end_request(use, promised, took, 10)
                    running.pop()
                    taken = [taken[0] + took[0], taken[1] + took[1]]
                case "retire":
                    use = budget.retire(use)
                case "break_off":
                    use = budget.break_off(use)
                case "end_session":
                    use = budget.end(use)
        except ValueError:
            use = before
        assert use.running == len(running) <= BUDGET.in_flight
        assert use.begun <= BUDGET.requests
        assert use.tokens_in == taken[0] + sum(r[0] for r in running) <= BUDGET.tokens_in
        assert use.tokens_out == taken[1] + sum(r[1] for r in running) <= BUDGET.tokens_out
        if use.life is Life.ENDED:
            assert not running
        if before.life is not Life.OPEN:
            assert use.life is not Life.OPEN and use.begun == before.begun


def test_illegal_moves_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be ended"):
        budget.end(Use())
    ended = budget.end(budget.retire(Use()))
    with pytest.raises(ValueError, match="cannot be retired"):
        budget.retire(ended)
    with pytest.raises(ValueError, match="cannot begin"):
        budget.begin(budget.retire(Use()), BUDGET, 1, 1, 0)
    with pytest.raises(ValueError, match="no running request"):
        budget.end_request(Use(), (1, 1), (1, 1), 0)
    running = budget.begin(Use(), BUDGET, 5, 5, 0)
    with pytest.raises(ValueError, match="no running request"):
        budget.end_request(running, (5, 5), (5, 6), 0)
    with pytest.raises(ValueError, match="cannot be ended"):
        budget.end(budget.retire(running))
    assert budget.break_off(ended) is ended


def test_nothing_begins_in_the_last_part_of_a_session() -> None:
    assert BUDGET.last_call_s == 240
    assert budget.has_room(Use(), BUDGET, 1, 1, 239.9)
    assert not budget.has_room(Use(), BUDGET, 1, 1, 240)
    long = SessionBudget(4, 100, 50, 2, 0, 3600)
    assert long.last_call_s == 3540


@pytest.mark.parametrize(
    ("use", "now_s", "low"),
    [
        (Use(), 0, False),
        (Use(begun=2), 0, False),
        (Use(begun=4), 0, True),
        (Use(tokens_in=76), 0, True),
        (Use(tokens_out=37), 0, False),
        (Use(tokens_out=38), 0, True),
        (Use(), 179, False),
        (Use(), 181, True),
        (Use(life=Life.RETIRED), 0, True),
    ],
)
def test_the_next_session_is_opened_before_any_limit_is_reached(
    use: Use, now_s: float, low: bool
) -> None:
    assert budget.is_low(use, BUDGET, now_s) is low


def test_a_session_is_idle_when_nothing_ran_for_a_while() -> None:
    use = Use(idle_since_s=100)
    assert not budget.is_idle(use, 159, 60)
    assert budget.is_idle(use, 160, 60)
    assert not budget.is_idle(budget.begin(use, BUDGET, 1, 1, 0), 900, 60)
