"""Does any input make a parser do else than answer, or raise an error of ours, within a second?

`python -m tests.siege.fuzz --inputs 1000000 --only keystores` says what was found. Each input is
made of a good one by a few changes, and depends on the seed and its number alone.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

import core.engine.model.anatomy  # noqa: F401 - unlisted models import torch: it is no growth
from client.gateway.accepting import make_prompts
from client.gateway.batches.batch_lines import BatchFile
from client.gateway.openai.fields import CHAT, ENDPOINTS, RESPONSES, read_json, read_wanted
from client.gateway.openai.models import ServedModel
from core.engine.sampling.grammar import grammar_of
from core.engine.weights.headers import INDEX_FILE, read_header
from core.engine.weights.manifest import MANIFEST_FILE
from core.engine.weights.pulled import PULLED_FILE, PulledFolder
from core.engine.weights.shape import describe_model
from core.engine.weights.tensors import TensorFolder
from core.engine.weights.weights import weight_roots
from core.keys import keystore
from core.models.publication import publication_of
from core.models.pull import layers_of, plan_pull
from core.protocol import records
from core.protocol.errors import HeadraceError
from core.protocol.network_file import read_network
from core.protocol.types import LayerRange
from core.runtime.folders import Folders
from core.runtime.settings import load
from devnet.models.tiny_models import write_tiny_model
from tests.client.gateway import toy
from tests.town.fleet import machine_key
from tests.town.orders import DOMAIN
from tests.twins.make_vectors import network_file

MOST_S, MOST_GROWTH_BYTES = 1.0, 256 * 2**20
#: Reads one input; anything but a return or an error of ours is a finding.
Reader = Callable[[bytes], object]

VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 2**16, 2**31, 2**40, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**100),
    *(0.5, -0.0, 1e308, float("inf"), float("nan"), None, True, False),
    *("", "x", "x" * 5_000, "\x00", "../..", "0x", "ff" * 32, "\u202e", "1e9"),
    *([], {}, [[]], [1] * 1_000, {"": 0}, {str(i): i for i in range(1_000)}),
)
DEEP = b"[" * 20_000


def spots(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    keys = value if isinstance(value, dict) else range(len(value)) if _is_list(value) else ()
    for key in keys:
        found.append((value, key))
        spots(value[key], found)
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def change_values(good: Any, rng: random.Random) -> Any:
    """A copy of a document with one to three values replaced, removed, repeated or renamed."""
    document = {"": msgspec.json.decode(msgspec.json.encode(good))}
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(spots(document, []))
        how = rng.random()
        if how < 0.7:
            container[key] = deepcopy(rng.choice(VALUES))
        elif isinstance(container, dict) and container is not document and how < 0.85:
            container[str(rng.choice(VALUES))] = container.pop(key)
        elif isinstance(container, dict) and container is not document:
            del container[key]
        elif isinstance(container, list):
            container.append(container[key])
    return document[""]


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """A copy with bytes changed, taken out, put in or repeated."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(found) + 1), rng.randint(1, 16)
        how = rng.randrange(6)
        if how == 0:
            found[at : at + size] = rng.randbytes(size)
        elif how == 1:
            del found[at : at + size]
        elif how == 2:
            found[at:at] = found[at : at + size] * rng.randint(1, 50)
        elif how == 3:
            del found[at:]
        elif how == 4:
            found[at:at] = rng.choice((DEEP, b"[", b"{", b'"', b"\\", b"9" * 5_000, b"\xff", b","))
        elif found:
            found[at % len(found)] ^= 1 << rng.randrange(8)
    return bytes(found)


def change_json(good: Any, rng: random.Random) -> bytes:
    """Bytes of a document that was changed as values, as bytes or both."""
    document = change_values(good, rng) if rng.random() < 0.7 else good
    data = json.dumps(document).encode()
    return change_bytes(data, rng) if rng.random() < 0.4 else data


class Subject:
    """A parser with good input; `change` makes an input of it."""

    def __init__(self, read: Reader, change: Callable[[random.Random], bytes]) -> None:
        self.read, self.change = read, change

    @classmethod
    def of_json(cls, read: Reader, good: Any) -> Subject:
        return cls(read, lambda rng: change_json(good, rng))


def _writing(file: Path, read: Callable[[], object]) -> Reader:
    def write_and_read(data: bytes) -> object:
        file.write_bytes(data)
        return read()

    file.touch(mode=0o600)
    return write_and_read


def _keystores(folder: Path) -> Subject:
    store = keystore.Keystore(folder, light=True)
    store.import_key("alice", "4c" * 32, "pw", chain_id=1)
    file = store.path("alice")
    good = json.loads(file.read_text())
    # Up to what is derived: an allowed cost may take seconds.
    return Subject.of_json(_writing(file, lambda: keystore._read_keystore(file)), good)


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 10,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
    "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
_SHAPES = {
    "model.embed_tokens.weight": [10, 8],
    "model.norm.weight": [8],
    **{f"model.layers.{i}.self_attn.q_proj.weight": [8, 8] for i in range(2)},
    **{f"model.layers.{i}.self_attn.k_proj.weight": [4, 8] for i in range(2)},
}


def _header() -> tuple[dict[str, Any], int]:
    """A safetensors header of the model, and how many bytes of data it describes."""
    found, at = {}, 0
    for name, shape in _SHAPES.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        found[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return found, at


def _packed(header: bytes, data_bytes: int) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(data_bytes)


def _model(folder: Path) -> tuple[dict[str, Any], int]:
    header, data_bytes = _header()
    packed = _packed(json.dumps(header).encode(), data_bytes)
    (folder / "model.safetensors").write_bytes(packed)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return header, data_bytes


def _configs(folder: Path) -> Subject:
    _model(folder)
    file = folder / "config.json"
    return Subject.of_json(_writing(file, lambda: describe_model(folder)), CONFIG)


def _headers(folder: Path) -> Subject:
    header, data_bytes = _model(folder)
    file = folder / "model.safetensors"

    def change(rng: random.Random) -> bytes:
        packed = _packed(change_json(header, rng), data_bytes)
        return change_bytes(packed[:8], rng) + packed[8:] if rng.random() < 0.1 else packed

    def read() -> None:
        read_header(file)
        describe_model(folder)

    return Subject(_writing(file, read), change)


def _indexes(folder: Path) -> Subject:
    _model(folder)
    file = folder / INDEX_FILE
    good = {
        "metadata": {"total_size": 1},
        "weight_map": dict.fromkeys(_SHAPES, "model.safetensors"),
    }

    def read() -> None:
        list(TensorFolder(folder).entries())
        describe_model(folder)

    return Subject.of_json(_writing(file, read), good)


NETWORK = {
    "chain_id": 31337,
    "rpc_url": "http://127.0.0.1:8545",
    "matcher_url": "http://127.0.0.1:9000",
    "matchers": ["0x" + "33" * 20 + "@http://127.0.0.1:9001", "https://two.example/market"],
    "token_symbol": "usd",
    "token_decimals": 6,
    "contracts": {"Staking": "0x" + "11" * 20},
    "models": {"toy": "0x" + "22" * 32},
}


def _manifests(folder: Path) -> Subject:
    """A publisher's manifest, until a machine knows what it would fetch and hold."""
    source, target = write_tiny_model(folder / "source", "llama", layers=2), folder / "target"
    good = json.loads(publication_of(source).manifest.to_json())
    good |= {"sigma": base64.b64encode(bytes(2 * 3 * 64)).decode()}
    target.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (target / name).write_bytes((source / name).read_bytes())

    def read() -> None:
        pulled = PulledFolder(target)
        layers = layers_of(target, pulled.manifest, LayerRange(0, 1))
        plan_pull(pulled, layers)
        describe_model(target)
        weight_roots(target)

    (target / PULLED_FILE).touch()
    return Subject.of_json(_writing(target / MANIFEST_FILE, read), good)


def _networks(folder: Path) -> Subject:
    file, folders = folder / "net.json", Folders.at(folder / "home")
    flags = {"network.name": str(file)}
    read = _writing(file, lambda: load(flags=flags, environ={}, folders=folders))
    signed = json.loads(network_file().as_json())

    def change(rng: random.Random) -> bytes:
        return change_json(rng.choice((NETWORK, signed)), rng)

    return Subject(read, change)


def _signed_networks(folder: Path) -> Subject:
    """A network file from a URL, until it is known who signed it."""

    def read(data: bytes) -> None:
        found = read_network(data)
        if found.recovered is None:
            found.as_settings()

    return Subject.of_json(read, json.loads(network_file().signed_with(machine_key(1)).as_json()))


def _records(folder: Path) -> Subject:
    signer = machine_key(1)
    good = {
        "operator": signer.address,
        "endpoint": "127.0.0.1:9001",
        "state": "SERVING",
        "modelId": "0x" + "22" * 32,
        "layers": [0, 4],
        "memoryBytes": 1,
        "tflops": 1.0,
        "bandwidthGbS": 1.0,
        "region": "eu",
        "tauMsPerLayer": 1.0,
        "rhoMs": {signer.address: 1.0},
        "maxRequests": 1,
        "activeRequests": 0,
        "kvFreeTokens": 1,
        "context": 32,
        "priceIn": 1,
        "priceOut": 1,
        "allocation": 0,
        "sentAtMs": 1,
    }

    def change(rng: random.Random) -> bytes:
        content = msgspec.msgpack.encode(fit(change_values(good, rng)))
        if rng.random() < 0.4:
            content = change_bytes(content, rng)
        whole = msgspec.msgpack.encode([content, 1, "0x" + "11" * 65])
        return change_bytes(whole, rng) if rng.random() < 0.4 else whole

    def read(data: bytes) -> None:
        records.unseal(data, DOMAIN)

    return Subject(read, change)


def fit(value: Any) -> Any:
    """With integers that msgpack can write."""
    if isinstance(value, dict):
        return {key: fit(item) for key, item in value.items()}
    if isinstance(value, list):
        return [fit(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return 2**64 - 1
    return value


def _line(number: int) -> dict[str, Any]:
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "you"}]
    body = {
        "model": "toy",
        "messages": said,
        "max_tokens": 4,
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["a", "b"],
        "seed": 3,
        "logit_bias": {"5": -1.0},
        "logprobs": True,
        "top_logprobs": 2,
        "user": "x",
    }
    return {"custom_id": f"{number}", "method": "POST", "url": CHAT, "body": body}


def _bodies(folder: Path) -> Subject:
    served = ServedModel(toy.MODEL, toy.tokenizer_in(folder))

    def read(data: bytes) -> None:
        for endpoint in ENDPOINTS:
            with suppress(HeadraceError):  # of the other endpoint
                make_prompts(read_wanted(read_json(data), endpoint), served, "x", 64)
        make_prompts(read_wanted(read_json(data), CHAT), served, "x", 64)

    return Subject.of_json(read, _line(1)["body"])


def _function(name: str) -> dict[str, Any]:
    whole = {"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 3}
    texts = {"type": "array", "items": {"type": "string", "format": "date-time"}, "maxItems": 2}
    properties = {"a": {"$ref": "#/$defs/whole"}, "b": {"anyOf": [texts, {"enum": ["x", None]}]}}
    schema = {"type": "object", "properties": properties, "$defs": {"whole": whole}}
    return {"name": name, "description": "It adds.", "parameters": schema}


def _tools(folder: Path) -> Subject:
    """Conversations with functions to call, and responses: what is no grammar."""
    served = ServedModel(toy.MODEL, toy.tokenizer_in(folder))
    called = {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    good = {
        "model": "toy",
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "x", "content": "5"},
        ],
        "tools": [{"type": "function", "function": _function("add")}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "x", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "x", "output": "5"},
    ]
    tool = {"type": "function", **_function("add")}
    response = {"model": "toy", "input": items, "tools": [tool], "instructions": "Be kind."}

    def read(data: bytes) -> None:
        body = read_json(data)
        endpoint = RESPONSES if "input" in body else CHAT
        make_prompts(read_wanted(body, endpoint), served, "x", 64)

    def change(rng: random.Random) -> bytes:
        return change_json(rng.choice((good, response)), rng)

    return Subject(read, change)


def _forms(folder: Path) -> Subject:
    """Schemas and other forms, until an answer's first token may be drawn."""
    served = ServedModel(toy.MODEL, toy.tokenizer_in(folder))
    said = [{"role": "user", "content": "hello"}]
    schema = {"type": "json_schema", "json_schema": {"schema": _function("")["parameters"]}}
    lark = 'start: "a" b* | /[a-z]{2,9}/\nb: "c" start? "d"'

    def read(data: bytes) -> None:
        wanted = read_wanted(read_json(data), CHAT)
        make_prompts(wanted, served, "x", 64)
        grammar = grammar_of(wanted.sampling, (), served.tokenizer)
        if grammar is not None:
            grammar.allowed()

    def change(rng: random.Random) -> bytes:
        forms: list[dict[str, Any]] = [
            {"response_format": schema},
            {"structured_outputs": {"grammar": lark}},
            {"structured_outputs": {"regex": r"(ab|c)*[0-9]{2,5}x?"}},
            {"structured_outputs": {"choice": ["yes", "no"]}},
        ]
        return change_json({"model": "toy", "messages": said, **rng.choice(forms)}, rng)

    return Subject(read, change)


def _batches(folder: Path) -> Subject:
    served = ServedModel(toy.MODEL, toy.tokenizer_in(folder))
    path = folder / "batch.jsonl"
    file = BatchFile(path, CHAT, 64)

    def change(rng: random.Random) -> bytes:
        return b"\n".join(change_json(_line(number), rng) for number in range(3))

    def read() -> None:
        lines = file.lines(file.model(), served)
        assert [line.number for line in file.load(lines.good, served)] == [
            place.number for place in lines.good
        ]

    return Subject(_writing(path, read), change)


SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "keystores": _keystores,
    "configs": _configs,
    "headers": _headers,
    "indexes": _indexes,
    "manifests": _manifests,
    "networks": _networks,
    "signed networks": _signed_networks,
    "records": _records,
    "bodies": _bodies,
    "tools": _tools,
    "forms": _forms,
    "batches": _batches,
}


def fuzz(name: str, folder: Path, *, inputs: int, seed: int) -> list[str]:
    """What was found: the input's number and what it did, at most twenty."""
    subject, found = SUBJECTS[name](folder), list[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(inputs):
        data = subject.change(random.Random(f"{seed} {number}"))
        began, did = time.process_time(), ""
        try:
            subject.read(data)
        except HeadraceError as error:
            if len("".join(error.lines())) > 8_000:
                did = "an error without end"
        except Exception as error:
            did = f"{type(error).__name__}: {error}"
        if (took_s := time.process_time() - began) > MOST_S:
            did = f"{took_s:.1f} s"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        if grown > MOST_GROWTH_BYTES:
            did, before = f"{grown} bytes more", before + grown // 1024
        if did:
            found.append(f"{name} {seed} {number}: {did[:300]}; {data[:200]!r}")
        if len(found) == 20:
            break
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--inputs", type=int, default=100_000, help="of each subject")
    arguments.add_argument("--only", choices=SUBJECTS)
    arguments.add_argument("--seed", type=int, default=0)
    asked, found = arguments.parse_args(), list[str]()
    for name in [asked.only] if asked.only else SUBJECTS:
        with tempfile.TemporaryDirectory() as folder:
            found += fuzz(name, Path(folder), inputs=asked.inputs, seed=asked.seed)
    print(*found, f"{len(found)} findings", sep="\n")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
