"""Which bytes do a model's tokens stand for, so that grammars can follow them?"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from core.protocol.errors import ModelUnsupported


class GrammarTokens:
    """All tokens of a model: slow to make, shared by all answers."""

    def __init__(self, tokenizer_file: Path, eos_ids: Collection[int]) -> None:
        """Raises ModelUnsupported for a model without end-of-text, or whose tokens are not known
        as bytes.
        """
        import llguidance

        refused = "this model cannot follow a grammar"
        if not eos_ids:
            raise ModelUnsupported(refused, "it has no end-of-text token")
        self.eos_ids = np.array(sorted(eos_ids), dtype=np.int64)
        try:
            self.library = llguidance.LLTokenizer(
                str(tokenizer_file), eos_token=self.eos_ids.tolist(), slices=[]
            )
        except Exception as error:  # the library raises ValueError and RuntimeError
            raise ModelUnsupported(refused, f"its {tokenizer_file.name}: {error}") from None
        #: A flag for each token: whether it ends an answer.
        self.ends = np.zeros(self.library.vocab_size, dtype=bool)
        self.ends[self.eos_ids] = True
