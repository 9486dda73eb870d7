"""Token counts of texts, by a tokenizer that the user names."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.embedded import EMBEDDED, tokenizer_file
from traces.errors import InputError

# Encodings are some hundred bytes a token, so only so many texts are encoded at once.
BATCH = 256


def count_tokens(texts: Sequence[str], tokenizer: str) -> NDArray[np.int64]:
    """(n,) tokens of each text, without special tokens (no chat template, no end of sequence).

    Args:
        texts: what to count.
        tokenizer: a ``tokenizer.json``, a folder that holds one, a name on the Hugging Face hub, or
            ``smollm2-135m-instruct`` for the embedded model's.

    Raises:
        InputError: the tokenizer is not to be had.
    """
    encode = load_tokenizer(tokenizer).encode_batch_fast
    counts = np.zeros(len(texts), np.int64)
    for start in range(0, len(texts), BATCH):
        batch = encode(list(texts[start : start + BATCH]), add_special_tokens=False)
        counts[start : start + len(batch)] = [len(encoding) for encoding in batch]
    return counts


@functools.lru_cache(maxsize=2)
def load_tokenizer(name: str) -> Any:
    """The ``tokenizers.Tokenizer`` of this name, without truncation or padding.

    Raises:
        InputError: the package is not installed, or no tokenizer is found under the name.
    """
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "counting tokens needs the tokenizers package: pip install 'estp[predictor]'"
        ) from None
    path = tokenizer_file() if name == EMBEDDED else Path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        if file.is_file():
            found = tokenizers.Tokenizer.from_file(str(file))
        elif path.is_dir():
            raise InputError(f"the folder {name} has no tokenizer.json")
        else:
            found = tokenizers.Tokenizer.from_pretrained(name)
    except InputError:
        raise
    except Exception as error:  # the package raises plain Exception for a bad file and for no network
        said = str(error).strip().split("\n")[0]
        raise InputError(
            f"no tokenizer {name!r}: name a tokenizer.json, a folder with one, a model on the "
            f"Hugging Face hub, or {EMBEDDED} ({said})"
        ) from error
    found.no_truncation()
    found.no_padding()
    return found
