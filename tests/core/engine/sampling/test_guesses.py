"""Are guesses what was said before, the same for whoever makes them, and fewer when they are
wrong?
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.engine.sampling.guesses import MOST_GUESSES, Boldness, Guesser
from core.protocol.wire import MAX_GUESSED

TOKENS = st.lists(st.integers(0, 3), max_size=60)


@given(TOKENS, TOKENS)
def test_both_ends_of_a_pipeline_guess_alike(prompt: list[int], answer: list[int]) -> None:
    """One is told the tokens one by one, the other begins with them all.

    Fewer guesses begin more.
    """
    one = Guesser(prompt)
    for token in answer:
        one.push(token)
    other = Guesser([*prompt, *answer])
    longest = other.guess(MOST_GUESSES)
    assert len(longest) in (0, MOST_GUESSES)
    for most in range(1, MOST_GUESSES + 1):
        assert one.guess(most) == longest[:most]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True), st.integers(1, 7))
def test_what_repeats_is_guessed(period: list[int], most: int) -> None:
    said = period * 8
    expected = [(period * 16)[len(said) + i] for i in range(most)]
    assert Guesser(said).guess(most) == expected


def test_the_newest_and_the_longer_run_goes_first() -> None:
    assert Guesser([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).guess(1) == [5]
    assert Guesser([9, 1, 2, 7, 8, 1, 2, 6, 9, 1, 2]).guess(1) == [7]
    assert Guesser([1, 2, 3]).guess(4) == Guesser([]).guess(4) == []


def test_boldness_follows_what_fits() -> None:
    boldness = Boldness()
    began = boldness.guesses
    for _ in range(4):
        boldness.heard(boldness.guesses, boldness.guesses)
    assert boldness.guesses == MOST_GUESSES == MAX_GUESSED > began
    for _ in range(5):
        boldness.heard(0, boldness.guesses)
    assert boldness.guesses == 1
