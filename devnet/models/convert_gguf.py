"""How does a GGUF file become a folder of float32 safetensors with tokenizer and chat template?

Run as `python -m devnet.models.convert_gguf FILE FOLDER`; FOLDER must not exist.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

#: Where the file was read, what classifiers would need, how calls return.
_NOT_OF_THE_MODEL = (
    "_",
    "quantization_config",
    "id2label",
    "label2id",
    "output_",
    "return_dict",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "local_files_only",
)


def convert(gguf: Path, target: Path) -> None:
    """Dequantise every weight to float32 through transformers' own reader, and write the folder."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    from core.engine.model.library import AutoModelForCausalLM

    target.mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    # `save_pretrained` refuses models that were read from GGUF, although nothing quantised is left.
    config = {
        key: value
        for key, value in model.config.to_dict().items()
        if not key.startswith(_NOT_OF_THE_MODEL) and value is not None
    }
    config["architectures"] = [type(model).__name__]
    weights, seen = {}, set()
    for name, parameter in model.named_parameters():  # a tied head comes once, as the embedding
        assert parameter.data_ptr() not in seen, f"{name} shares memory"
        seen.add(parameter.data_ptr())
        weights[name] = parameter.detach().contiguous()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, local_files_only=True
    )
    tokenizer.save_pretrained(target)
    ends = _end_ids(model, tokenizer)
    (target / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ends}, indent=1), encoding="utf-8"
    )
    # Last, because a folder with a config counts as a model.
    (target / "config.json").write_text(json.dumps(config, indent=1, default=str), encoding="utf-8")


def _end_ids(model: object, tokenizer: object) -> list[int]:
    stated = getattr(model, "generation_config").eos_token_id  # noqa: B009
    ends = set(stated if isinstance(stated, list) else [stated]) - {None}
    ends.add(getattr(tokenizer, "eos_token_id"))  # noqa: B009
    for text in ("<end_of_turn>", "<|im_end|>"):
        found = tokenizer.convert_tokens_to_ids(text)  # type: ignore[attr-defined]
        if found is not None and found != getattr(tokenizer, "unk_token_id", None):
            ends.add(found)
    return sorted(ends - {None})


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
