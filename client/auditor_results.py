"""What do the auditor's commands print with --json? One type per command; published schemas are made from them."""

from __future__ import annotations

from typing import Any

from client.results import Dispute
from core.runtime.commands.results import Result


class Stage(Result, frozen=True, forbid_unknown_fields=False):
    """`check`: how far a stage's outputs are from an honest run, what follows, and what looking took beside what serving did."""

    stage: int
    operator: str
    layers: str
    requests: int
    deviation: str
    allowed: str
    first_divergent_step: str
    tolerance: str
    verdict: str
    why: str
    re_run_s: str
    of_serving: str


class Replayed(Result, frozen=True):
    """`replay`: how far a request's tokens are from what the model itself says, through all of its layers."""

    request: int
    tokens: int
    behind: int
    largest_nat: str
    at_token: int
    allowed_nat: str
    follows: bool
    why: str


class Layer(Result, frozen=True, forbid_unknown_fields=False):
    """`check --explain`: a second document, a row per layer."""

    stage: str
    after_layer: str
    honest_here: str
    served: str
    allowed: str


class Juror(Result, frozen=True):
    """`jury stake`, `jury status` and `jury withdraw`."""

    juror: str
    stake: str
    leaving: str
    open_disputes: int
    credit: str


class Bundled(Result, frozen=True):
    """`bundle`: what a third party needs to check a job without asking anybody."""

    file: str
    job: str
    receipts: int
    requests: int
    bytes: int


class BundleVerified(Result, frozen=True):
    """`verify`: what holds, and what only chain and model can tell."""

    job: str
    order: str
    receipts: str
    tokens_in: int
    tokens_out: int
    due: str
    still_to_check: str


class Audited(Result, frozen=True):
    """`audits ls`: one stage of one job that watching has re-run."""

    job: str
    stage: int
    operator: str
    verdict: str
    requests: int
    in_float64: int
    deviation: str
    allowed: str
    dispute: str
    why: str


class OperatorStanding(Result, frozen=True):
    """`audits standings`: what audits of an operator came to."""

    operator: str
    jobs: int
    clean: int
    faults: int
    withheld: int
    suspicious: int
    avoid: bool


class Told(Result, frozen=True):
    """`audits tell`: what the matcher has taken."""

    auditor: str
    matcher: str
    operators: int
    at_fault: int


class Watched(Result, frozen=True):
    """`audits status`."""

    auditor: str
    secret_hash: str
    jobs: dict[str, int]
    only_measured: int
    largest_measured: str
    not_accused_yet: int
    drawn_by_matcher: int
    taken_by_matcher: int


class Move(Result, frozen=True):
    """`disputes show`: one transaction of a game."""

    player: str
    function: str
    what: str
    gas: int
    calldata_bytes: int
    block: int
    tx_hash: str


class Moved(Result, frozen=True):
    """`disputes move` and `disputes resolve`: the call that was made, and where the dispute stands now."""

    dispute: str
    before: str
    done: str
    phase: str
    verdict: str
    clock_s: int


class Collected(Result, frozen=True, forbid_unknown_fields=False):
    """`withdraw`: all that disputes owed, and beside it how much of it each contract did."""

    withdrawn: str
    to: str


class CanariesMixed(Result, frozen=True):
    """`canaries mix`."""

    file: str
    canaries: int
    requests: int
    secret: str


class Canary(Result, frozen=True):
    """`canaries check`: one request whose answer was known."""

    custom_id: str
    job: str
    same: bool
    first_difference: str


RESULTS: dict[str, tuple[Any, ...]] = {
    "canaries mix": (CanariesMixed,),
    "canaries check": (list[Canary],),
    "audits ls": (list[Audited],),
    "audits standings": (list[OperatorStanding],),
    "audits status": (Watched,),
    "audits tell": (Told,),
    "bundle": (Bundled,),
    "verify": (BundleVerified,),
    "check": (list[Stage], list[Layer]),
    "replay": (list[Replayed],),
    "dispute": (Dispute,),
    "disputes ls": (list[Dispute],),
    "disputes show": (list[Move], list[Dispute], dict[str, str]),
    "disputes move": (Moved,),
    "disputes resolve": (Moved,),
    "disputes claim": (Collected,),
    "withdraw": (Collected,),
    "jury stake": (Juror,),
    "jury status": (Juror,),
    "jury withdraw": (Juror,),
}
