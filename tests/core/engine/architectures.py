"""Which architectures does the engine claim to run, and what does a small random model of each look
like?
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from core.engine.model.clone import tiny_clone
from core.engine.model.naming import Family
from core.engine.model.refusal import attention_of

#: Model type → fields without which the library's own default configuration does not run.
RUNS: dict[str, dict[str, Any]] = {
    name: {}
    for name in [
        "afmoe",
        "apertus",
        "arcee",
        "aria_text",
        "axk1",
        "beam",
        "biogpt",
        "bitnet",
        "bloom",
        "codegen",
        "cohere",
        "cohere2",
        "cohere2_moe",
        "cwm",
        "deepseek_v3",
        "diffllama",
        "doge",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "exaone_moe",
        "falcon",
        "flex_olmo",
        "flint",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gpt_neox_japanese",
        "gpt_oss",
        "gptj",
        "granite",
        "granite_swa",
        "granitemoe",
        "granitemoe_swa",
        "granitemoeshared",
        "helium",
        "hy_v3",
        "hyperclovax",
        "internlm3",
        "iquestcoder",
        "jais2",
        "jetmoe",
        "kolibri1",
        "laguna",
        "llama",
        "mellum",
        "mimo_v2_flash",
        "minicpm3",
        "minimax_m2",
        "minimax_m3_vl_text",
        "ministral3",
        "mistral",
        "mixtral",
        "modernbert-decoder",
        "mpt",
        "nanochat",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "opt",
        "persimmon",
        "phi",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "solar_open",
        "stablelm",
        "starcoder2",
        "vaultgemma",
        "xglm",
        "youtu",
    ]
} | {
    "bloom": {"n_layer": 24},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
}
#: Variants of a family that compute differently.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon-new-decoder": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 8}),
    "falcon-alibi": ("falcon", {"alibi": True}),
    "falcon-sequential": ("falcon", {"parallel_attn": False, "bias": True}),
    "gpt_neox-sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "opt-post-norm": ("opt", {"do_layer_norm_before": False}),
    "qwen3_moe-dense-first": ("qwen3_moe", {"mlp_only_layers": [0], "decoder_sparse_step": 1}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "phi3-window": ("phi3", {"sliding_window": 8}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
    "granite-scaled": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.2,
            "attention_multiplier": 0.1,
        },
    ),
}
PROMPT = torch.arange(21) * 37 % 96
#: A prompt longer than the windows of eight, single steps, a chunk in the middle.
CHUNKS = (PROMPT, *torch.arange(5).split(1), torch.arange(40, 46), torch.tensor([7]))


def config_of(name: str) -> Any:
    """The library's default configuration of an architecture or variant, at full size."""
    model_type, fields = VARIANTS.get(name, (name, RUNS.get(name, {})))
    return CONFIG_MAPPING[model_type](**fields)


def write_model(folder: Path, name: str, *, tied: bool | None = None) -> Path:
    """A random model of four layers as checkpoints are published: several files, the library's
    stored names.
    """
    config = tiny_clone(config_of(name))
    if tied is not None:
        config.tie_word_embeddings = tied
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
                elif "embed" in path or "wte" in path:
                    parameter.mul_(4.0)
    total = sum(p.nbytes for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=total // 2)
    return folder


def whole_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The same model, loaded by the library alone, with weights where matrix kernels like them."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.set_attn_implementation(attention_of(model.config))
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def with_wide_end(model: Any, family: Family) -> Any:
    """The same model, its norm and head in float32 behind its own layers."""

    def wide(_: Any, args: Any) -> Any:
        return tuple(x.float() if torch.is_floating_point(x) else x for x in args)

    head = model.get_submodule(family.head)
    head.weight = torch.nn.Parameter(head.weight.detach().float())  # not the embedding's any more
    for path in (*family.after, family.head):
        model.get_submodule(path).float().register_forward_pre_hook(wide)
    return model


def answers(model: Any, chunks: tuple[torch.Tensor, ...] = CHUNKS) -> list[torch.Tensor]:
    """Its logits [T, V] for every chunk of one request."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        return [
            model(input_ids=x[None], past_key_values=cache, use_cache=True).logits[0]
            for x in chunks
        ]


def write_sized(folder: Path, model_type: str, dtype: str, *, hidden: int = 768) -> Path:
    """A random model of six layers that is large enough for its memory to be measured."""
    fields: dict[str, Any] = {"num_local_experts": 4} if model_type == "mixtral" else {}
    config = CONFIG_MAPPING[model_type](
        vocab_size=2048,
        hidden_size=hidden,
        intermediate_size=hidden if fields else 2 * hidden,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        **fields,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    return folder
