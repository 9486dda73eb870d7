"""A small encoder that has learnt nothing yet, for SSJF and LTR where no pretrained one can be had.

    python tools/small_encoder.py FOLDER

BERT with 2 layers of width 128 and a WordPiece vocabulary of the embedded prompts, random weights (seed 0). What
it knows about a prompt it has to learn from the training lengths, so its errors are an upper bound for BERT-base.
"""

import sys
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizerFast

from predictor.embedded import read_rollout
from predictor.rows import prompts_of


def write_encoder(
    folder: Path, texts: list[str], words: int = 4000, width: int = 128, layers: int = 2
) -> None:
    """Write tokenizer, configuration and random weights as `save_pretrained` does."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(texts, vocab_size=words, show_progress=False)
    BertTokenizerFast(vocab=pieces.get_vocab(), model_max_length=512).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=pieces.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
    )
    BertModel(config).save_pretrained(folder)


if __name__ == "__main__":
    write_encoder(Path(sys.argv[1]), sorted(set(prompts_of(read_rollout()))))
