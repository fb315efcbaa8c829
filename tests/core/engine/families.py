"""Which families of models does the engine run? Each has a tiny random model."""

from __future__ import annotations

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2")
