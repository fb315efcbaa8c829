"""A random Llama of a size, in a folder as people publish them."""

from __future__ import annotations

from pathlib import Path

from devnet.models.tiny_models import write_tiny_model

SHARD = "400MB"


def write_random_llama(
    folder: Path, *, layers: int, hidden: int, ffn: int, vocab: int = 32_000
) -> Path:
    """Written with the tiny models' tokenizer, whose words are fewer; float32."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    write_tiny_model(folder, "llama", layers=1)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        vocab_size=vocab,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size=SHARD)
    return folder
