"""Compares the referee's two twins, Python and Solidity, on as many random leaves as asked.

    python -m tests.twins.referee_vectors      100 000 leaves of each kind, and raw numbers
    python -m tests.twins.referee_vectors --count 2000 --kinds LINEAR EXP

Starts its own local chain. Prints one line a kind and exits 1 if a single answer differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from core.dispute.referee import Format, Leaf, LeafError, LeafKind, rule
from core.dispute.referee.formats import decode
from core.dispute.referee.noise import gumbel_of, philox_word
from core.dispute.referee.real import Real
from core.dispute.referee.sums import dot
from core.dispute.referee.transcend import exp_fixed, ln_fixed
from tests.conftest import start_anvil
from tests.twins.referee_cases import Cases
from tests.twins.referee_chain import ANVIL_OPTIONS, REVERTS, ChainReferee

_CHUNK = 2000
FULL_COUNT = 100_000


def python_ruling(leaf: Leaf) -> int:
    """The Python twin's ruling, REVERTS where it raises LeafError."""
    try:
        return int(rule(leaf))
    except LeafError:
        return REVERTS


def compare_kind(chain: ChainReferee, kind: LeafKind, count: int, seed: int) -> Counter[int]:
    """Rulings on `count` leaves, by number of times.

    Raises AssertionError with the first leaf on which the twins differ.
    """
    leaves = Cases(seed).leaves(kind, count)
    mine = [python_ruling(leaf) for leaf in leaves]
    for leaf, here, there in zip(leaves, mine, chain.rulings(leaves), strict=True):
        assert here == there, f"Python rules {here}, Solidity {there} on {leaf}"
    return Counter(mine)


def compare_exps(chain: ChainReferee, count: int, seed: int) -> Counter[int]:
    rng = random.Random(seed)
    x = [rng.choice((-1, 1)) * (rng.getrandbits(132) >> rng.randrange(132)) for _ in range(count)]
    assert chain.exps(x) == [exp_fixed(value) for value in x]
    return Counter({1: count})


def compare_logs(chain: ChainReferee, count: int, seed: int) -> Counter[int]:
    rng = random.Random(seed)
    x = [
        Real((rng.getrandbits(250) >> rng.randrange(250)) or 1, rng.randint(-1300, 1300))
        for _ in range(count)
    ]
    assert chain.logs(x) == [ln_fixed(*value) for value in x]
    return Counter({1: count})


def compare_noises(chain: ChainReferee, count: int, seed: int) -> Counter[int]:
    rng = random.Random(seed)
    key, step = (rng.getrandbits(32), rng.getrandbits(32)), rng.getrandbits(32)
    tokens = [rng.getrandbits(32) for _ in range(count)]
    words = [philox_word((step, token), key) for token in tokens]
    assert chain.noises(key, step, tokens) == (words, [gumbel_of(word) for word in words])
    return Counter({1: count})


def compare_decoding(chain: ChainReferee, count: int, seed: int) -> Counter[int]:
    """Runs of up to 40 values of each format, any bit patterns."""
    rng = random.Random(seed)
    done = 0
    while done < count:
        fmt = rng.choice(list(Format))
        n = rng.randint(1, 40)
        raw = rng.randbytes(n * fmt.width_bytes)
        assert chain.decoded(raw, fmt) == (decode(raw, fmt) or []), (fmt, raw.hex())
        done += n
    return Counter({1: done})


def compare_sums(chain: ChainReferee, count: int, seed: int) -> Counter[int]:
    """Sums of dot products, to the last bit."""
    done = 0
    for leaf in Cases(seed).leaves(LeafKind.LINEAR, count // 10):
        if python_ruling(leaf) not in (0, 1):
            continue
        fmt, n = leaf.params
        trace = decode(leaf.operands[: 8 * (1 + n)], Format.F64)
        model = decode(leaf.operands[8 * (1 + n) :], Format(fmt))
        if trace is None or model is None:
            continue
        assert chain.sums(fmt, n, leaf.operands) == dot(model, trace[1:])
        done += 1
    return Counter({1: done})


Comparison = Callable[[ChainReferee, int, int], Counter[int]]
RAW: dict[str, Comparison] = {
    "exp": compare_exps,
    "ln": compare_logs,
    "noise": compare_noises,
    "decoding": compare_decoding,
    "sums": compare_sums,
}


def comparisons(names: list[str]) -> dict[str, Comparison]:
    """What to compare, by name: kinds of leaves and raw numbers; all without a name."""
    known: dict[str, Comparison] = {
        kind.name: partial(_compare_kind_last, kind=kind) for kind in LeafKind
    }
    known |= RAW
    return {name: known[name] for name in names or known}


def _compare_kind_last(chain: ChainReferee, count: int, seed: int, kind: LeafKind) -> Counter[int]:
    return compare_kind(chain, kind, count, seed)


def _run(rpc_url: str, name: str, count: int, seed: int) -> tuple[str, Counter[int], float]:
    started_s = time.monotonic()
    chain = ChainReferee(rpc_url)
    compare = comparisons([name])[name]
    found: Counter[int] = Counter()
    for chunk, size in enumerate(_chunks(count)):
        found += compare(chain, size, seed + 1000 * chunk)
    return name, found, time.monotonic() - started_s


def _chunks(count: int) -> Iterator[int]:
    for start in range(0, count, _CHUNK):
        yield min(_CHUNK, count - start)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Python against Solidity, leaf by leaf.")
    parser.add_argument("--count", type=int, default=FULL_COUNT, help="leaves of each kind")
    parser.add_argument("--kinds", nargs="*", default=[], help="names; all without one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(argv)
    node = start_anvil(*ANVIL_OPTIONS)
    try:
        with ProcessPoolExecutor(options.workers) as pool:
            runs = [
                pool.submit(_run, node.rpc_url, name, options.count, options.seed)
                for name in comparisons(options.kinds)
            ]
            for run in runs:
                name, found, seconds = run.result()
                rulings = dict(sorted(found.items()))
                print(f"{name:20} {found.total():>8} alike  {rulings}  {seconds:.0f} s", flush=True)
    except AssertionError as difference:
        print(f"the twins differ: {difference}", file=sys.stderr)
        return 1
    finally:
        node.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
