"""Multi-step arithmetic and logic, with one to seven steps and several ways to be asked for the answer."""

from itertools import pairwise

import numpy as np

from predictor.prompts.words import NAMES, THINGS, pick

ASKS = (
    "Answer with the number only.",
    "Give only the final answer, without any explanation.",
    "Reply with a single word or number.",
    "Answer in one short sentence.",
    "Answer in one sentence and say why.",
    "Think step by step, then give the answer.",
    "Show each step on its own line, then give the answer.",
    "Explain every step, as a teacher would, and then check the result.",
    "First make a plan, then carry it out step by step.",
    "",
    "",
)


def shop(rng: np.random.Generator) -> str:
    """A store of things that changes over one to seven steps."""
    name, thing = pick(rng, NAMES), pick(rng, THINGS)
    steps = (
        "buys {k} more", "gives {k} to a friend", "loses {k} on the way home", "finds {k} in a drawer",
        "sells {k} at the market", "doubles what is left by a trade", "shares half with a neighbour",
        "receives {k} as a present", "breaks {k} by accident", "puts {k} aside for later",
    )  # fmt: skip
    chosen = rng.choice(len(steps), size=int(rng.integers(1, 8)), replace=False)
    story = ", then ".join(steps[i].format(k=int(rng.integers(2, 30))) for i in chosen)
    start = int(rng.integers(40, 200))
    return f"{name} has {start} {thing}. {name} {story}. How many {thing} does {name} have now?"


def ages(rng: np.random.Generator) -> str:
    """A chain of age differences."""
    people = [NAMES[i] for i in rng.choice(len(NAMES), size=int(rng.integers(2, 7)), replace=False)]
    facts = [f"{people[0]} is {int(rng.integers(8, 40))} years old"]
    for younger, older in pairwise(people):
        kind = pick(rng, ("{k} years older than", "{k} years younger than", "twice as old as"))
        facts.append(f"{older} is {kind.format(k=int(rng.integers(1, 8)))} {younger}")
    return ". ".join(facts) + f". How old is {people[-1]}?"


def order(rng: np.random.Generator) -> str:
    """Who stands where, from pairwise facts."""
    people = [NAMES[i] for i in rng.choice(len(NAMES), size=int(rng.integers(3, 7)), replace=False)]
    relation = pick(rng, ("taller than", "older than", "faster than", "richer than"))
    facts = [f"{a} is {relation} {b}" for a, b in pairwise(people)]
    facts = [facts[i] for i in rng.permutation(len(facts))]
    ask = pick(rng, ("Who comes first?", "Who comes last?", "List all of them in order, one per line."))
    return ". ".join(facts) + f". {ask}"


def sequence(rng: np.random.Generator) -> str:
    """The next terms of an arithmetic, geometric or alternating sequence."""
    start, step = int(rng.integers(1, 20)), int(rng.integers(2, 9))
    shown = int(rng.integers(4, 7))
    kind = int(rng.integers(3))
    terms = [(start + step * i, start * 2**i, start + step * (i // 2) - (i % 2))[kind] for i in range(shown)]
    more = pick(
        rng, ("the next number", "the next two numbers", "the next five numbers", "the next ten numbers")
    )
    return f"Here is a sequence: {', '.join(map(str, terms))}. What is {more}?"


def trip(rng: np.random.Generator) -> str:
    """Time and distance over several legs."""
    legs = [
        f"{int(rng.integers(2, 9)) * 10} km at {int(rng.integers(2, 12)) * 10} km per hour"
        for _ in range(int(rng.integers(1, 6)))
    ]
    ask = pick(rng, ("How long does the trip take?", "What is the average speed?", "When does the trip end?"))
    return (
        f"{pick(rng, NAMES)} starts at {int(rng.integers(6, 12))}:00 and drives {', then '.join(legs)}. {ask}"
    )


def knights(rng: np.random.Generator) -> str:
    """Truth tellers and liars."""
    people = [NAMES[i] for i in rng.choice(len(NAMES), size=int(rng.integers(2, 5)), replace=False)]
    says = (
        "{a} says that {b} lies", "{a} says that {b} tells the truth",
        "{a} says that both {a} and {b} lie", "{a} says that exactly one of {a} and {b} lies",
    )  # fmt: skip
    facts = [pick(rng, says).format(a=a, b=people[i - 1]) for i, a in enumerate(people)]
    return (
        "On an island each person either always lies or always tells the truth. "
        + ". ".join(facts)
        + ". Who lies and who tells the truth?"
    )


def calculation(rng: np.random.Generator) -> str:
    """A bare chain of sums and products."""
    count = int(rng.integers(2, 8))
    parts = [str(int(rng.integers(2, 99)))]
    for _ in range(count - 1):
        parts += [pick(rng, ("+", "-", "*")), str(int(rng.integers(2, 30)))]
    return f"{pick(rng, ('Compute', 'Work out', 'What is'))} {' '.join(parts)}?".replace(
        "Compute", "Compute:"
    )


def listing(rng: np.random.Generator) -> str:
    """An enumeration whose size is asked for: tables, divisors, sorted lists, dates."""
    n = int(rng.integers(3, 16))
    k = int(rng.integers(2, 13))
    numbers = ", ".join(str(int(x)) for x in rng.integers(1, 100, size=n))
    return pick(
        rng,
        (
            f"Sort these numbers from small to large: {numbers}.",
            f"Write the multiplication table of {k} from 1 to {n}.",
            f"Count from {k} to {k + n * 3} and mark every number that can be divided by 3.",
            f"List the first {n} square numbers.",
            f"Which of these numbers are even: {numbers}?",
            f"What is the sum and the mean of {numbers}?",
            f"Is {n * k + 1} a prime number?",
            f"Convert {n * k} minutes to hours and minutes.",
        ),
    )


FAMILIES = (shop, shop, ages, order, sequence, trip, knights, calculation, listing)


def make(rng: np.random.Generator) -> str:
    """One problem, with a way to answer before or after it."""
    problem = FAMILIES[int(rng.integers(len(FAMILIES)))](rng)
    ask = pick(rng, ASKS)
    parts = [ask, problem] if rng.random() < 0.35 else [problem, ask]
    return " ".join(part for part in parts if part)
