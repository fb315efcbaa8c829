"""What might a peer say to a stage about a job that it has a part in, and what if it were changed?

Good messages are made of what is true of the job, so that a change of them gets past the first
checks; who says one is mostly, but not always, who may.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from core.engine.weights.manifest import MANIFEST_FILE
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.receipts import word_of
from tests.core.protocol.test_wire import MESSAGES
from tests.siege.fuzz import VALUES, change_bytes, change_values, fit, spots
from tests.town.machines import Machine, greedy
from tests.town.orders import DOMAIN
from tests.town.requester import Requester

SAMPLINGS = (
    greedy(24),
    t.SamplingParams(700_000, 40, 50_000, 24, 11, n_logprobs=2, ignore_eos=True),
    t.SamplingParams(max_new_tokens=24, logit_bias=((5, -1), (6, 2)), min_new_tokens=4),
    t.SamplingParams(900_000, max_new_tokens=24, seed=3, stop=(b"END", "é".encode())),
    t.SamplingParams(max_new_tokens=24, frequency_penalty_micro=500_000, key_index=3),
    t.SamplingParams(max_new_tokens=24, first_step=1, repetition_penalty_micro=1_200_000),
)
REQUESTS = 12
#: Of the requests of both jobs.
PROMPTS = [
    (tuple(range(5 + index, 8 + index + index % 4)), SAMPLINGS[index % len(SAMPLINGS)])
    for index in range(REQUESTS)
]
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    128,
    129,
    255,
    2**16 - 1,
    2**16,
    2**20,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
)
SAID_BY = ("stranger", "matcher", "requester", "before", "after")
#: Of all inputs, which share is sent as it is, and up to which values are changed; others' bytes.
UNCHANGED, VALUES_CHANGED = 0.3, 0.88
Said = tuple[wire.AnyMessage, bytes]


@dataclass(frozen=True)
class Topic:
    """What a message is about: a request of a job, and the stage that is told.

    `other` is a job of the same requester, `stranger` the address of a key without any part.
    """

    job: Requester
    other: Requester
    machines: Sequence[Machine]
    stage: int
    request: int
    stranger: str

    @property
    def place(self) -> tuple[str, int]:
        return self.job.order_hash, self.request

    @property
    def hidden(self) -> int:
        return int(self.machines[0].shard.hidden)


@dataclass(frozen=True)
class Input:
    """One input: the body of a frame, who sends it, and to which stage."""

    kind: str
    by: str
    stage: int
    body: bytes


def _few(rng: random.Random, most: int = 30) -> int:
    return rng.randrange(most)


def _ping(topic: Topic, rng: random.Random) -> Said:
    return wire.Ping(), b""


def _allocate(topic: Topic, rng: random.Random) -> Said:
    model_id = topic.machines[0].terms.model_id
    return wire.Allocate(model_id, rng.choice((None, t.LayerRange(0, 2))), _few(rng)), b""


def _propose(topic: Topic, rng: random.Random) -> Said:
    good = topic.job.proposal(topic.stage)
    continues = rng.choice((None, topic.other.order_hash))
    good = msgspec.structs.replace(good, continues=continues)
    if rng.random() < 0.5:  # an order that is new
        order = msgspec.structs.replace(good.signed.order, nonce=rng.getrandbits(62))
        signed = msgspec.structs.replace(good.signed, order=order)
        good = msgspec.structs.replace(good, signed=_signed_order(topic, signed))
    return good, b""


def _open_job(topic: Topic, rng: random.Random) -> Said:
    good = topic.job.opening(topic.stage)
    known: list[int | None] = [rng.choice((None, _few(rng, REQUESTS))) for _ in range(REQUESTS)]
    continues = rng.choice((None, wire.Continues(topic.other.order_hash, known)))
    return msgspec.structs.replace(good, continues=continues), b""


def _submit(topic: Topic, rng: random.Random) -> Said:
    return topic.job.submission(topic.request)


def _goes_on(topic: Topic, rng: random.Random) -> Said:
    before = rng.choice((topic.other, topic.job)).order_hash
    return wire.GoesOn(*topic.place, before, _few(rng, REQUESTS)), b""


def _rows(topic: Topic, rng: random.Random, rows: int) -> bytes:
    noise = np.random.default_rng(rng.getrandbits(32))
    data = noise.standard_normal(rows * topic.hidden, dtype="<f4")
    if rng.random() < 0.05:
        data[_few(rng, len(data))] = rng.choice((np.nan, np.inf, 1e38))
    return data.tobytes()


def _activations(topic: Topic, rng: random.Random) -> Said:
    prompt = _prompt_tokens(topic)
    rows = rng.choice((1, 1, prompt, prompt, _few(rng) + 1, 128, 129))
    start = rng.choice((0, 0, prompt, _few(rng)))
    halved = rng.random() < 0.2
    data = _rows(topic, rng, rows)
    message = wire.Activations(
        *topic.place,
        start,
        rows,
        halved=halved,
        again=rng.random() < 0.2,
        guessed=rng.choice((0, 0, 0, min(rows - 1, 7))),
        most_rows=rng.choice((0, prompt + 24, 512)),
        trace=_trace(rng),
        origin=rng.choice((None, wire.Origin("r-1"))),
        group=rng.choice((0, 1, 2)),
    )
    return message, data[::2] if halved else data


def _trace(rng: random.Random) -> list[int] | None:
    numbers = (0, 1, 2, 3, 500, 2**32 - 1)
    stages = rng.choice((0, 0, 1, 2, wire.MAX_STAGES))
    return [rng.choice(numbers) for _ in range(3 * stages)] or None


def _carry(topic: Topic, rng: random.Random) -> Said:
    return wire.Carry(*topic.place, _few(rng), _few(rng)), b""


def _word(topic: Topic, rng: random.Random, stage: int, tokens_out: int) -> t.SignedWord:
    root = f"0x{rng.getrandbits(256):064x}"
    leaf = t.RequestLeaf(topic.request, root, root, _prompt_tokens(topic), tokens_out)
    answer = t.ZERO_HASH if stage else root
    return _signed_word(
        topic, word_of(topic.job.order_hash, topic.job.plan_hash, stage, leaf, answer)
    )


def _token(topic: Topic, rng: random.Random) -> Said:
    step = _few(rng)
    finish: wire.Finish = rng.choice(("", "", "stop", "length", "cancelled"))
    message = wire.Token(*topic.place, step, rng.randrange(272), finish, _trace(rng))
    if finish:
        word = _word(topic, rng, len(topic.machines) - 1, step + 1)
        message = msgspec.structs.replace(message, states_root=word.word.in_root, word=word)
    return message, b""


def _finish(topic: Topic, rng: random.Random) -> Said:
    tokens_out = _few(rng) + 1
    word = _word(topic, rng, max(0, topic.stage - 1), tokens_out)
    return wire.FinishRequest(*topic.place, _prompt_tokens(topic), tokens_out, word), b""


def _waiting(topic: Topic, rng: random.Random) -> Said:
    return wire.Waiting(*topic.place, _few(rng, 5)), b""


def _stopped(topic: Topic, rng: random.Random) -> Said:
    return wire.Stopped(*topic.place), b""


def _cut(topic: Topic, rng: random.Random) -> Said:
    return wire.Cut(*topic.place, _prompt_tokens(topic), _few(rng) + 1), b""


def _cancel(topic: Topic, rng: random.Random) -> Said:
    return wire.Cancel(*topic.place), b""


def _acknowledge(topic: Topic, rng: random.Random) -> Said:
    job = topic.job
    ack = t.Ack(job.order_hash, job.plan_hash, t.ZERO_HASH, _few(rng, 100), _few(rng, 200))
    return _signed_ack(topic, wire.Acknowledge(ack, "0x" + "1b" * 65)), b""


def _end_job(topic: Topic, rng: random.Random) -> Said:
    return wire.EndJob(topic.job.order_hash), b""


def _withdraw(topic: Topic, rng: random.Random) -> Said:
    return wire.Withdraw(topic.job.order_hash), b""


def _progress(topic: Topic, rng: random.Random) -> Said:
    return wire.Progress(topic.job.order_hash), b""


def _close_job(topic: Topic, rng: random.Random) -> Said:
    requests = [topic.request, *(_few(rng, REQUESTS) for _ in range(_few(rng, 3)))]
    return wire.CloseJob(topic.job.order_hash, requests), b""


def _fetch(topic: Topic, rng: random.Random) -> Said:
    delegation, signature = None, None
    if rng.random() < 0.5:
        delegation = t.AuditorDelegation(topic.job.order_hash, topic.stranger, 2**40)
        signature = signing.sign(topic.job.signer, DOMAIN, delegation)
    side: wire.Side = rng.choice(("in", "out", "states"))
    return rng.choice(
        (
            wire.FetchOpening(*topic.place, delegation, signature),
            wire.FetchRows(*topic.place, side, _few(rng), _few(rng), delegation, signature),
            wire.FetchReceipts(topic.job.order_hash, delegation, signature),
        )
    ), b""


def _show_node(topic: Topic, rng: random.Random) -> Said:
    return wire.ShowNode(topic.job.order_hash, _few(rng), _few(rng)), rng.randbytes(64)


def _fetch_file(topic: Topic, rng: random.Random) -> Said:
    file = rng.choice((MANIFEST_FILE, "config.json", "model.safetensors", "model.safetensors"))
    start = rng.choice((0, 0, _few(rng, 10**6)))
    model_id = topic.machines[0].terms.model_id
    return wire.FetchFile(model_id, file, start, start + rng.choice((1, 100, 2**20))), b""


def _bundle(topic: Topic, rng: random.Random) -> Said:
    makers = (_activations, _activations, _token, _finish, _stopped, _cancel)
    said = [
        rng.choice(makers)(replace(topic, request=_few(rng, REQUESTS)), rng)
        for _ in range(rng.randint(1, 6))
    ]
    message, payloads = wire.bundle(said)  # type: ignore[arg-type]
    return message, b"".join(payloads)


def _untaken(topic: Topic, rng: random.Random) -> Said:
    """A message of the protocol that no stage may be asked."""
    taken = {type(maker(topic, random.Random(0))[0]) for maker in MAKERS if maker is not _untaken}
    return rng.choice([message for message in MESSAGES if type(message) not in taken]), b""


Maker = Callable[[Topic, random.Random], Said]
#: What is said, by whom it may be, and how often.
MAKERS: dict[Maker, tuple[str, int]] = {
    _ping: ("stranger", 2),
    _allocate: ("matcher", 4),
    _propose: ("matcher", 14),
    _withdraw: ("matcher", 2),
    _open_job: ("requester", 8),
    _submit: ("requester", 24),
    _goes_on: ("requester", 6),
    _activations: ("before", 28),
    _carry: ("before", 10),
    _token: ("after", 14),
    _finish: ("before", 12),
    _waiting: ("before", 5),
    _stopped: ("after", 3),
    _cut: ("requester", 10),
    _cancel: ("requester", 4),
    _acknowledge: ("requester", 10),
    _end_job: ("requester", 1),
    _progress: ("requester", 3),
    _close_job: ("requester", 8),
    _fetch: ("stranger", 14),
    _show_node: ("stranger", 3),
    _fetch_file: ("stranger", 6),
    _bundle: ("before", 10),
    _untaken: ("stranger", 6),
}


def _prompt_tokens(topic: Topic) -> int:
    return len(PROMPTS[topic.request][0])


# --- signed anew, as who signed the good one would ---


def _signed_order(topic: Topic, signed: t.SignedOrder) -> t.SignedOrder:
    order = msgspec.structs.replace(signed.order, terms_hash=signing.terms_hash(signed.terms))
    return t.SignedOrder(order, signing.sign(topic.job.signer, DOMAIN, order), signed.terms)


def _signed_word(topic: Topic, word: t.RequestWord) -> t.SignedWord:
    signer = topic.machines[word.stage % len(topic.machines)].signer
    return t.SignedWord(word, signing.sign(signer, DOMAIN, word))


def _signed_ack(topic: Topic, message: wire.Acknowledge) -> wire.Acknowledge:
    return wire.Acknowledge(message.ack, signing.sign(topic.job.signer, DOMAIN, message.ack))


def _signed_opening(topic: Topic, message: wire.Submit, payload: bytes) -> wire.Submit:
    prompt = [int.from_bytes(payload[at : at + 4], "little") for at in range(0, len(payload), 4)]
    leaves = (
        commit.prompt_leaf(message.request, commit.unhex(message.salt), prompt),
        commit.sampling_leaf(message.request, message.sampling),
    )
    hashes = (commit.to_hex(commit.leaf_hash(leaf)) for leaf in leaves)
    opening = t.RequestOpening(message.order_hash, message.request, *hashes)
    signed = t.SignedOpening(opening, signing.sign(topic.job.signer, DOMAIN, opening))
    return msgspec.structs.replace(message, opening=signed)


def _sign_anew(topic: Topic, message: wire.AnyMessage, payload: bytes) -> wire.AnyMessage:
    if isinstance(message, wire.Propose | wire.OpenJob):
        return msgspec.structs.replace(message, signed=_signed_order(topic, message.signed))
    if isinstance(message, wire.Token | wire.FinishRequest) and message.word is not None:
        return msgspec.structs.replace(message, word=_signed_word(topic, message.word.word))
    if isinstance(message, wire.Acknowledge):
        return _signed_ack(topic, message)
    if isinstance(message, wire.Submit) and message.opening is not None:
        return _signed_opening(topic, message, payload)
    return message


# --- changes ---


def _alike(value: Any, topic: Topic, rng: random.Random) -> Any:
    """Another value that the field of this one may hold."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, max(0, value - 1), *NUMBERS))
    if isinstance(value, list):
        return rng.choice((value[:-1], value[1:], value * 2, value[::-1], value * 300))
    if not isinstance(value, str) or not value.startswith("0x"):
        return deepcopy(rng.choice(VALUES))
    jobs, operators = (topic.job, topic.other), [m.signer.address for m in topic.machines]
    if len(value) == len(t.ZERO_ADDRESS):
        return rng.choice((t.ZERO_ADDRESS, topic.stranger, topic.job.signer.address, *operators))
    if len(value) == len(t.ZERO_HASH):
        hashes = [known for job in jobs for known in (job.order_hash, job.plan_hash, job.job_id)]
        return rng.choice((t.ZERO_HASH, f"0x{rng.getrandbits(256):064x}", *hashes))
    return rng.choice((topic.other.signed.signature, "0x" + rng.randbytes(65).hex()))


def _change_alike(good: wire.AnyMessage, topic: Topic, rng: random.Random) -> Any:
    """A copy of a message with one to three values replaced by others of their kind."""
    document = {"": msgspec.to_builtins(good)}
    inner = [spot for spot in spots(document, []) if spot[1] not in ("", "type")]
    for container, at in rng.sample(inner, min(len(inner), rng.randint(1, 3))):
        with suppress(LookupError):  # what it lay in was replaced before
            container[at] = _alike(container[at], topic, rng)
    return document[""]


def _changed(topic: Topic, message: wire.AnyMessage, payload: bytes, rng: random.Random) -> bytes:
    """A header like that of the message; one that can still be read is signed anew at times."""
    is_alike = rng.random() < 0.85
    changed = _change_alike(message, topic, rng) if is_alike else change_values(message, rng)
    header = msgspec.msgpack.encode(fit(changed))
    if rng.random() < 0.4:
        return header
    try:
        read: wire.AnyMessage = msgspec.msgpack.decode(header, type=wire.AnyMessage)
        return msgspec.msgpack.encode(_sign_anew(topic, read, payload))
    except (msgspec.MsgspecError, OverflowError):
        return header


def _changed_payload(payload: bytes, rng: random.Random) -> bytes:
    how = rng.randrange(8)
    if how == 0:
        return b""
    if how == 1:
        return rng.randbytes(4 * _few(rng, 200))
    if how == 2:
        return rng.randbytes(_few(rng, 2_000))
    if how == 3:
        return payload[: _few(rng, len(payload) + 1)]
    if how == 4:
        return payload * rng.randint(2, 9)
    if how == 5 and rng.random() < 0.1:
        return bytes(rng.choice((2**16, 2**20, 2**22)))
    return change_bytes(payload, rng)


def make_input(jobs: Sequence[Requester], topic: Topic, number: int, seed: int) -> Input:
    """Input `number`, about one of these jobs, for one of the machines of `topic`."""
    rng = random.Random(f"{seed} {number}")
    job, other = rng.sample(list(jobs), 2)
    stage = rng.randrange(len(topic.machines))
    topic = replace(topic, job=job, other=other, stage=stage, request=_few(rng, REQUESTS))
    makers = list(MAKERS)
    maker = rng.choices(makers, [MAKERS[maker][1] for maker in makers])[0]
    by = MAKERS[maker][0] if rng.random() < 0.75 else rng.choice(SAID_BY)
    message, payload = maker(topic, rng)
    if rng.random() < 0.2:
        payload = _changed_payload(payload, rng)
    how = rng.random()
    is_changed = 0.3 < how < 0.8
    header = (
        _changed(topic, message, payload, rng) if is_changed else msgspec.msgpack.encode(message)
    )
    is_push = isinstance(message, wire.Push | wire.Bundle | wire.Waiting | wire.EndJob)
    is_call = rng.random() < (0.1 if is_push else 0.9)
    fields = (2**31 + number % 2**31 if is_call else 0, 0, len(header))
    prefix = bytes([wire.VERSION]) + b"".join(field.to_bytes(4, "big") for field in fields)
    body = prefix + header + payload
    if how >= VALUES_CHANGED or rng.random() < 0.03:
        body = change_bytes(body, rng)
    return Input(type(message).__name__, by, stage, body)
