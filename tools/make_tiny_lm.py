"""Train the tiny language model of the tests from scratch: python tools/make_tiny_lm.py --out DIR --seed 0.

Prints the loss, and for held-out prompts whether sampled answers are in the grammar (tiny_grammar.py) and
as long as it says. One thread, about a quarter of an hour.
"""

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tiny_grammar import SCENARIOS, Task, make_task, prompts, tasks, vocabulary

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<' + m['role'] + '> ' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ ' ' + eos_token }}{% else %}{{ ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def make_tokenizer() -> Any:
    """Words and punctuation marks, one token each; every word of the grammar and nothing else."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>", "<system>"]
    vocab = {word: i for i, word in enumerate([*special, *vocabulary()])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **names,
        additional_special_tokens=special[4:],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def chat(tokenizer: Any, prompt: str) -> str:
    message = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))


def lessons(
    tokenizer: Any, args: argparse.Namespace, held_out: set[str]
) -> Iterator[list[tuple[list[int], int]]]:
    """One batch a step: (token ids, where the answer starts), all about as long, some `batch_tokens` in all.

    The tasks grow to their full size over the first half: copying and counting are learned much sooner when
    there is little to look at.
    """
    rng, step = np.random.default_rng([args.seed, 1]), 0
    while True:
        size = min(1.0, 2 * step / args.steps)
        pool = []
        for i in range(600):
            task = make_task(SCENARIOS[i % len(SCENARIOS)], rng, size)
            if task.prompt not in held_out:
                text = [chat(tokenizer, task.prompt), f"{task.answer(rng)} <eos>"]
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                pool.append((ids[0] + ids[1], len(ids[0])))
        pool.sort(key=lambda row: len(row[0]))
        batches = [[pool[0]]]
        for row in pool[1:]:
            if len(row[0]) * (len(batches[-1]) + 1) > args.batch_tokens:
                batches.append([])
            batches[-1].append(row)
        for i in rng.permutation(len(batches)).tolist():
            yield batches[i]
            step += 1


def train(model: Any, tokenizer: Any, args: argparse.Namespace, held_out: set[str]) -> None:
    """AdamW, warm-up and cosine; prompt tokens weigh less, as most of their words are chance."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05)
    started, shown = time.perf_counter(), 0.0
    for step, rows in zip(range(args.steps), lessons(tokenizer, args, held_out), strict=False):
        ids = torch.full((len(rows), max(len(row) for row, _ in rows)), tokenizer.pad_token_id)
        weight = torch.zeros(ids.shape)
        for i, (row, start) in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            weight[i, 1:start], weight[i, start : len(row)] = args.prompt_weight, 1.0
        rate = min(1.0, (step + 1) / 100) * (0.51 + 0.49 * math.cos(math.pi * step / args.steps))
        optimizer.param_groups[0]["lr"] = args.lr * rate
        with torch.autocast("cpu", dtype=torch.bfloat16):  # a third less time; the weights stay float32
            logits = model(input_ids=ids).logits[:, :-1].float()
        nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        weight = weight[:, 1:]
        loss = (nll * weight).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        shown += nll.detach()[weight == 1].mean().item()
        if (step + 1) % 100 == 0:
            spent = time.perf_counter() - started
            print(f"step {step + 1}/{args.steps}  answer loss {shown / 100:.3f}  {spent:.0f} s", flush=True)
            shown = 0.0


def sample(model: Any, tokenizer: Any, texts: list[str], seed: int, limit: int = 192) -> list[str]:
    """One answer each, sampled at temperature 1 in batches of 64; `<eos>` is kept as the last word."""
    import torch

    torch.manual_seed(seed)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    answers = [""] * len(texts)
    for i in range(0, len(order), 64):
        part = order[i : i + 64]
        encoded = tokenizer(
            [texts[j] for j in part], padding=True, add_special_tokens=False, return_tensors="pt"
        )
        encoded.pop("token_type_ids", None)
        out = model.generate(**encoded, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=limit)
        for j, row in zip(part, out[:, encoded["input_ids"].shape[1] :], strict=True):
            answers[j] = tokenizer.decode(row).replace(" <pad>", "")
    return answers


def check(folder: Path, held_out: list[Task], seed: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    started = time.perf_counter()
    answers = sample(model, tokenizer, [chat(tokenizer, t.prompt) for t in held_out], seed)
    spent = time.perf_counter() - started
    lengths = np.array([len(answer.split()) for answer in answers])
    expected = np.array([t.expected_tokens for t in held_out])
    good = np.array([t.parses(a.removesuffix(" <eos>")) for t, a in zip(held_out, answers, strict=True)])
    print(f"{len(answers)} held-out prompts, {lengths.sum() / spent:.0f} tokens/s")
    for name in (*SCENARIOS, ""):
        rows = np.array([t.scenario.startswith(name) for t in held_out])
        r = np.corrcoef(lengths[rows], expected[rows])[0, 1]
        print(
            f"{name or 'all':10s} length against expectation: r = {r:.3f}; in the grammar {good[rows].mean():.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny language model of the tests.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model and prompts.jsonl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch-tokens", type=int, default=1536)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--prompt-weight", type=float, default=0.2)
    parser.add_argument(
        "--prompts", type=int, default=360, help="prompts held out and stored beside the model"
    )
    args = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    held_out = tasks(args.prompts, args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} words")
    train(model, tokenizer, args, {t.prompt for t in held_out})
    model.generation_config.update(do_sample=True, temperature=1.0, top_k=0)

    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out.parent, prefix=".tiny_lm-") as scratch:
        folder = Path(scratch)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        rows = (json.dumps(row) + "\n" for row in prompts(args.prompts, args.seed))
        (folder / "prompts.jsonl").write_text("".join(rows), encoding="utf-8")
        check(folder, held_out, args.seed)
        args.out.mkdir(exist_ok=True)
        for file in folder.iterdir():
            os.replace(file, args.out / file.name)


if __name__ == "__main__":
    main()
