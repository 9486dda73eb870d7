"""Prompts on disk: JSON lines with `prompt`, and `prompt_id`, `scenario`, `samples`, `temperature` if wanted."""

import json
from collections.abc import Sequence
from pathlib import Path

from predictor.prompts import Prompt
from traces.errors import InputError
from traces.files import atomic_path


def write_prompts(prompts: Sequence[Prompt], path: Path) -> None:
    """One JSON object a line; all or nothing."""
    lines = [
        {
            "prompt_id": p.prompt_id,
            "scenario": p.scenario,
            "prompt": p.text,
            "samples": p.samples,
            "temperature": p.temperature,
        }
        for p in prompts
    ]
    with atomic_path(path) as temporary:
        temporary.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def read_prompts(path: Path, samples: int = 1, temperature: float = 1.0) -> list[Prompt]:
    """Prompts of a JSONL file; the arguments stand in for fields that a line lacks.

    Raises InputError naming file, line and field for what is missing or wrong, and for an id given twice.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the prompts file {path}: {error}") from error
    found: dict[str, Prompt] = {}
    # Not splitlines(): a prompt may hold U+2028, which JSON lets stand as it is.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            prompt = _parse(line, f"{path}, line {number}", len(found), samples, temperature)
            if prompt.prompt_id in found:
                raise InputError(f"{path}, line {number}: prompt_id {prompt.prompt_id!r} was there before")
            found[prompt.prompt_id] = prompt
    if not found:
        raise InputError(f"{path} holds no prompts")
    return list(found.values())


def _parse(line: str, where: str, index: int, samples: int, temperature: float) -> Prompt:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str) or not fields["prompt"]:
        raise InputError(f"{where}: the field 'prompt' must be a text that is not empty")
    count, heat = fields.get("samples", samples), fields.get("temperature", temperature)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"{where}: 'samples' is {count!r}; it must be a whole number of at least 1")
    if not isinstance(heat, (int, float)) or isinstance(heat, bool) or not 0 <= heat < float("inf"):
        raise InputError(f"{where}: 'temperature' is {heat!r}; it must be a number of at least 0")
    return Prompt(
        str(fields.get("prompt_id", f"prompt-{index:05d}")),
        str(fields.get("scenario", "prompts")),
        fields["prompt"],
        count,
        float(heat),
    )
