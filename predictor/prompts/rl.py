"""Short open tasks, sampled several times each, as a policy-gradient rollout does."""

import numpy as np

from predictor.prompts.words import NAMES, NUMBER_WORDS, PLACES, TOPICS, pick

TASKS = (
    "Write a haiku about {t}.",
    "Write a short poem of {n} lines about {t}.",
    "Name {n} words that belong to {t}, separated by commas.",
    "Give one word that describes {t}.",
    "Is it useful to know about {t}? Answer yes or no.",
    "Define {t} in one sentence.",
    "Explain {t} to a child in two sentences.",
    "Explain {t} to a student in one paragraph, with an example.",
    "Give {n} facts about {t}, one line each.",
    "Give {n} facts about {t}, each explained in two sentences.",
    "Write a story about {a} and {t} in {n} sentences.",
    "Write a story about {a}, who discovers something about {t} in {p}. Use three paragraphs.",
    "Compare {t} and {u} in one sentence.",
    "Compare {t} and {u}: give {n} differences as a numbered list.",
    "Write a dialogue of {n} lines between {a} and {b} about {t}.",
    "What would {a} need for a trip to {p}? List {n} things, separated by commas.",
    "Plan a trip of three days to {p}, with two sentences for each day.",
    "Write a text message to {a} about {t}.",
    "Write a short email to {a} that asks for {n} days off to visit {p}.",
    "Write a slogan for a museum of {t}.",
    "Write a paragraph about {t} and a paragraph about {u}.",
    "Write a Python function that counts how often the word '{t}' occurs in a text.",
    "Give instructions for teaching {t} in {n} short steps.",
    "Say something nice about {t}.",
    "Ask me {n} questions about {t}.",
    "Make a riddle whose answer is {t}.",
    "List {n} ingredients for a soup that {a} could cook in {p}.",
    "Which is more important, {t} or {u}? Answer with one of the two.",
    "Which is more important, {t} or {u}? Give one argument for each.",
    "Write the first sentence of a novel about {t}.",
)
STYLES = (
    "", "", "", "", "", " Be brief.", " Keep it as short as possible.", " Use simple words.",
    " Explain your answer.", " Do not add anything else.",
)  # fmt: skip
OPENINGS = (
    "",
    "",
    "",
    "Please help me. ",
    "I am {b} from {p}. ",
    "You are a teacher. ",
    "A question from {b}: ",
)


def make(rng: np.random.Generator) -> str:
    """One task in one style."""
    t, u = rng.choice(len(TOPICS), size=2, replace=False)
    a, b = rng.choice(len(NAMES), size=2, replace=False)
    words = {
        "t": TOPICS[t],
        "u": TOPICS[u],
        "a": NAMES[a],
        "b": NAMES[b],
        "p": pick(rng, PLACES),
        "n": pick(rng, NUMBER_WORDS),
    }
    return (pick(rng, OPENINGS) + pick(rng, TASKS) + pick(rng, STYLES)).format(**words)
