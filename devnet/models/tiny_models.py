"""Which random models are small enough to test every architecture with?

Each has random weights but a working byte-level tokenizer and chat template, so text goes through
it like through a real model; only the answers make no sense.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
#: 256 bytes, the special tokens, and some ids that no text produces.
DEFAULT_VOCAB = 272
_WINDOW_TOKENS = 8


def write_tiny_model(
    model_dir: Path,
    architecture: str = "llama",
    *,
    layers: int = 4,
    hidden: int = 64,
    vocab: int = DEFAULT_VOCAB,
    context: int = 512,
    seed: int = 0,
    tied: bool | None = None,
    files: int = 1,
    dtype: str = "float32",
    weight_std: float = 0.05,
    options: dict[str, Any] | None = None,
) -> Path:
    """Write a random model of one of the seven families, with a tokenizer. Returns its folder.

    The same arguments give the same weights. `tied` overrides the family's habit, `files` > 1
    writes an index and several safetensors files, `options` overrides fields of the configuration.
    mistral and the gemmas get sliding windows of eight tokens, so that short tests cross them.
    """
    import torch

    from core.engine.model.library import AutoModelForCausalLM

    if vocab < 256 + len(SPECIAL_TOKENS):
        raise ValueError(f"a byte-level vocabulary has at least {256 + len(SPECIAL_TOKENS)} ids")
    config = _config(architecture, layers, hidden, vocab, context, tied, options or {})
    config.initializer_range = weight_std
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # norms and biases start at 0 or 1 and would hide mistakes
                    parameter.add_(torch.randn_like(parameter) * 0.1)
                elif "embed" in name or "wte" in name:
                    parameter.mul_(4.0)
    model_dir.mkdir(parents=True, exist_ok=True)
    total_bytes = sum(p.nbytes for p in model.parameters())
    model.save_pretrained(model_dir, max_shard_size=max(1, total_bytes // files))
    write_tiny_tokenizer(model_dir)
    return model_dir


def write_tiny_tokenizer(model_dir: Path) -> None:
    """A byte-level tokenizer without merges, chat template included."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    tokenizer.save(str(model_dir / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "chat_template": CHAT_TEMPLATE,
    }
    (model_dir / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _config(
    architecture: str,
    layers: int,
    hidden: int,
    vocab: int,
    context: int,
    tied: bool | None,
    options: dict[str, Any],
) -> Any:
    from transformers import AutoConfig

    ends = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": None}
    if architecture == "gpt2":
        sizes: dict[str, Any] = {
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": 4,
            "n_positions": context,
        }
    else:
        sizes = {
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": context,
        }
    if architecture in ("gemma2", "gemma3", "qwen3"):
        sizes["head_dim"] = hidden // 4
    if architecture in ("gemma2", "gemma3"):
        sizes |= {"query_pre_attn_scalar": hidden // 4, "sliding_window": _WINDOW_TOKENS}
    if architecture == "gemma3":
        sizes["sliding_window_pattern"] = 3
    if architecture == "mistral":
        sizes |= {"sliding_window": _WINDOW_TOKENS, "head_dim": hidden // 4}
    if tied is not None:
        sizes["tie_word_embeddings"] = tied
    model_type = "gemma3_text" if architecture == "gemma3" else architecture
    return AutoConfig.for_model(model_type, vocab_size=vocab, **(sizes | ends | options))
