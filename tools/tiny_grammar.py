"""The grammar that the tiny language model of the tests speaks: prompts, and all answers to each.

A prompt asks for some number of things at some level of detail, both hidden among distractors; the answer
spends tokens on each thing. So the answer's length follows from the prompt, up to real chance, but neither
from the prompt's length nor from its scenario.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SCENARIOS = ("longseq", "reasoning", "rl")
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
NUMBERS += ["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"]
NUMBERS += ["nineteen", "twenty"]
KINDS = {
    "bird": "heron owl duck crow finch robin stork",
    "tool": "hammer drill chisel wrench ladder shovel rake",
    "fruit": "apple pear plum fig lemon cherry mango",
    "tree": "oak elm pine birch maple willow cedar",
    "metal": "iron gold tin zinc copper nickel silver",
}
CHOICES = {
    "PERSON": "tom ann ben eva leo mia",
    "PLACE": "river gate bridge market garden school harbour mill",
    "SEASON": "spring summer autumn winter",
    "ADJ": "old small grey quiet bright heavy rare plain fine odd",
    "TOPIC": "sleep music travel work food sport",
    "ASKED": "tips facts ideas rules reasons jokes",
    "THING": "coins books stamps shells cards",
    "DO": "rest walk read wait plan listen share learn",
    "GAIN": "finds buys wins",
    "LOSS": "loses sells drops",
    "NUM": "one two three four five six seven eight nine",
}
SLOTS = {name: words.split() for name, words in CHOICES.items()}
LEVELS = {
    "brief": ("be brief .", "keep it short .", "a quick answer please ."),
    "usual": ("thank you .", "please help me .", "i am ready ."),
    "full": ("explain it fully .", "give every detail .", "take a long look ."),
}
# Every word that sets the level also occurs where it sets nothing, and so do number words.
FILLERS = (
    "the SEASON was short .",
    "a quick train left at NUM .",
    "PERSON gave a brief smile .",
    "the road to the PLACE is long .",
    "the door was fully open .",
    "PERSON forgot a detail of it .",
    "page NUM was torn .",
    "PERSON is NUM years old .",
    "the bus of NUM was late .",
    "the PLACE was ADJ .",
)
ASK = {
    "longseq": ("list each KIND in the text .", "describe every KIND you see .", "which KINDs are there ?"),
    "reasoning": ("how many THING does PERSON have ?", "count the THING of PERSON ."),
    "rl": ("give me NUM ASKED about TOPIC .", "i need NUM ASKED for TOPIC .", "name NUM ASKED on TOPIC ."),
}
VAGUE = {"some": (2, 3, 4, 5), "several": (3, 4)}
CHATTY = 0.35

# What an answer says in turn: each piece with its probability.
Plan = list[tuple[float, str]]
# The sentences that matter, the question, and the possible plans with their probabilities.
Draft = tuple[list[str], str, list[tuple[float, Plan]]]


@dataclass(frozen=True)
class Task:
    """A prompt and the distribution of its answers."""

    scenario: str
    prompt: str
    plans: list[tuple[float, Plan]]

    @property
    def expected_tokens(self) -> float:
        """Mean answer length, end of sequence included."""
        return 1 + sum(p * sum(q * len(piece.split()) for q, piece in plan) for p, plan in self.plans)

    def answer(self, rng: np.random.Generator) -> str:
        plan = self.plans[rng.choice(len(self.plans), p=[p for p, _ in self.plans])][1]
        return " ".join(fill(piece, rng) for q, piece in plan if rng.random() < q)

    def parses(self, answer: str) -> bool:
        """Whether the grammar could give this answer; sums need the right steps, not the right values."""
        number = f"(?:{'|'.join(NUMBERS)}|[0-9]+) "

        def pattern(word: str) -> str:
            if self.scenario == "reasoning" and (word in NUMBERS or word.isdigit()):
                return number
            return f"(?:{'|'.join(SLOTS[word])}) " if word in SLOTS else re.escape(word) + " "

        def optional(q: float, piece: str) -> str:
            said = "".join(map(pattern, piece.split()))
            return said if q == 1 else f"(?:{said})?"

        return any(re.fullmatch("".join(optional(*s) for s in plan), answer + " ") for _, plan in self.plans)


def prompts(n: int, seed: int) -> list[dict[str, str]]:
    """n different prompts as rows of prompt_id, scenario, prompt; those of ``tasks(n, seed)``."""
    return [
        {"prompt_id": f"{task.scenario}-{i:04d}", "scenario": task.scenario, "prompt": task.prompt}
        for i, task in enumerate(tasks(n, seed))
    ]


def tasks(n: int, seed: int) -> list[Task]:
    """n tasks with different prompts, the scenarios in turn."""
    rng, found = np.random.default_rng(seed), dict[str, Task]()
    while len(found) < n:
        task = make_task(SCENARIOS[len(found) % len(SCENARIOS)], rng)
        found.setdefault(task.prompt, task)
    return list(found.values())


def make_task(scenario: str, rng: np.random.Generator, size: float = 1.0) -> Task:
    """One task of about 10 to 57 words; the sentences that matter stand anywhere in its prompt.

    A size below 1 asks for less among fewer distractors: lessons to start with.
    """
    level = pick(rng, list(LEVELS))
    sentences, ask, plans = {"longseq": longseq, "reasoning": reasoning, "rl": rl}[scenario](rng, level, size)
    target = int(rng.integers(12, 40) if scenario == "rl" else rng.integers(44, 66))
    extra = [pick(rng, LEVELS[level])]
    while len(" ".join([*sentences, ask, *extra]).split()) < target * size:
        extra.append(fill(pick(rng, FILLERS), rng))
    for sentence in extra:
        sentences.insert(int(rng.integers(len(sentences) + 1)), sentence)
    first, last, any_ = 0, len(sentences), int(rng.integers(len(sentences) + 1))
    sentences.insert((first, last, any_)[int(rng.integers(3))], ask)
    return Task(scenario, re.sub(r" ([.,:?])", r"\1", " ".join(sentences)), plans)


def longseq(rng: np.random.Generator, level: str, size: float) -> Draft:
    """Things of five kinds lie about; the answer goes through those of one kind."""
    kind, *others = rng.permutation(list(KINDS)).tolist()
    count = int(rng.integers(0, 3 + round(4 * size)))
    found = rng.permutation(KINDS[kind].split())[:count].tolist()
    rest = rng.permutation(" ".join(KINDS[other] for other in others).split()).tolist()
    items = rng.permutation(found + rest[: max(2, int(rng.integers(8, 13) * size) - count)]).tolist()
    plan: Plan = [(1, heading(count, kind + "s", level))]
    for word in (item for item in items if item in found):
        if level == "brief":
            plan.append((1, f"{word} ,"))
        else:
            plan += [(1, f"the {word} is ADJ"), (0.5, "and ADJ")]
            if level == "full":
                plan += [(0.6, ", it was by the PLACE"), (0.5, ", and we like it in SEASON")]
            plan.append((1, "."))
    sentences = []
    while items:
        size = int(rng.integers(2, 5))
        sentences.append(fill("near the PLACE : ", rng) + " " + " , ".join(items[:size]) + " .")
        items = items[size:]
    return sentences, pick(rng, ASK["longseq"]).replace("KIND", kind), [(1, plan)]


def reasoning(rng: np.random.Generator, level: str, size: float) -> Draft:
    """Two people win and lose things; the answer adds up one person's, step by step."""
    person, other = rng.permutation(SLOTS["PERSON"])[:2].tolist()
    value, steps = int(rng.integers(2, 10)), int(rng.integers(1, 3 + round(4 * size)))
    mine = [f"{person} has {NUMBERS[value]} ."]
    plan: Plan = [(1, heading(steps, "steps" if steps > 1 else "step", level))]
    plan += [(1, str(value))] if level == "brief" else []
    for _ in range(steps):
        gains = value < 2 or (value <= 11 and rng.random() < 0.5)
        by = int(rng.integers(1, 10 if gains else min(value, 9) + 1))
        new, verb = (value + by if gains else value - by), pick(rng, SLOTS["GAIN" if gains else "LOSS"])
        mine.append(f"{person} {verb} {NUMBERS[by]} .")
        a, b, c = NUMBERS[value], NUMBERS[by], NUMBERS[new]
        there, back = ("plus", "minus") if gains else ("minus", "plus")
        if level == "brief":
            plan.append((1, f"{'+' if gains else '-'} {by}"))
        elif level == "usual":
            plan.append((1, f"{a} {there} {b} is {c} ."))
        else:
            plan.append((1, f"{person} has {a} and {verb} {b} , so {a} {there} {b} is {c} ."))
            plan.append((0.3, f"check : {c} {back} {b} is {a} ."))
        value = new
    plan.append((1, f"= {value} ." if level == "brief" else f"so {NUMBERS[value]} ."))
    theirs = [fill(f"{other} has NUM .", rng)]
    for _ in range(int(rng.integers(1, max(2, round(7 * size) - steps)))):
        theirs.append(fill(f"{other} {pick(rng, ('GAIN', 'LOSS'))} NUM .", rng))
    turns = rng.permutation([0] * len(mine) + [1] * len(theirs)).tolist()
    ask = pick(rng, ASK["reasoning"]).replace("PERSON", person)
    return [(mine, theirs)[turn].pop(0) for turn in turns], fill(ask, rng), [(1, plan)]


def rl(rng: np.random.Generator, level: str, size: float) -> Draft:
    """A short request for so many tips; some numbers are vague, and some answers are chatty."""
    number = pick(rng, NUMBERS[1 : 3 + round(4 * size)] * 2 + list(VAGUE))
    noun = pick(rng, SLOTS["ASKED"])
    counts = VAGUE.get(number) or (NUMBERS.index(number),)
    plans = []
    for chatty in (False, True):
        share, q = (CHATTY, 0.75) if chatty else (1 - CHATTY, 0.4)
        for count in counts:
            plan: Plan = [(1, heading(count, noun if count > 1 else noun[:-1], level))]
            plan += [(1, "sure ,")] if chatty else []
            for i in range(count):
                if level == "brief":
                    plan += [(1, "DO"), (q, "and DO"), (1, ",")]
                    continue
                plan += [(1, f"{NUMBERS[i + 1]} : DO"), (q, "in the SEASON")]
                if level == "full":
                    plan += [(1, ", since it is ADJ"), (q, "and ADJ"), (q, ", or DO by the PLACE")]
                plan.append((1, "."))
            plans.append((share / len(counts), plan))
    ask = pick(rng, ASK["rl"]).replace("NUM", number).replace("ASKED", noun)
    return [], fill(ask, rng), plans


def heading(count: int, noun: str, level: str) -> str:
    if level == "brief":
        return f"{count} {noun} :"
    return f"{NUMBERS[count]} {noun} " + ("in full ." if level == "full" else ".")


def pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def fill(text: str, rng: np.random.Generator) -> str:
    """The text with each slot name replaced by one of its words."""
    return " ".join(pick(rng, SLOTS[word]) if word in SLOTS else word for word in text.split())


def vocabulary() -> list[str]:
    """Every word and punctuation mark of the grammar, sorted."""
    text = [*NUMBERS, *map(str, range(21)), *FILLERS, *VAGUE, *CHOICES.values(), *KINDS.values()]
    text += [line for group in (LEVELS, ASK) for lines in group.values() for line in lines]
    text += [f"{kind} {kind}s" for kind in KINDS] + [noun[:-1] for noun in SLOTS["ASKED"]]
    for task in tasks(600, seed=0):
        text += [task.prompt] + [piece for _, plan in task.plans for _, piece in plan]
    words = {word for line in text for word in re.findall(r"\w+|[^\w\s]+", line)}
    return sorted(words - set(SLOTS) - {"KIND", "KINDs"})
