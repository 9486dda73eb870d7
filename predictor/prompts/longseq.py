"""Long documents with one task each: from a single name to a full rewrite."""

import numpy as np

from predictor.prompts.words import NAMES, PLACES, THINGS, TOPICS, pick

EVENTS = (
    "{a} repaired the {t2} pump in the cellar before noon",
    "the delivery of {n} {t} from {p} came two days late",
    "{a} and {b} agreed to move the workshop to {p}",
    "a storm closed the road to {p} for {n} hours",
    "{b} found an error in the budget of about {m} euros",
    "the new schedule for the {w} team was rejected by {a}",
    "visitors asked most often about {topic}",
    "{a} sold {n} {t} at the market in {p}",
    "the old machine failed again and {b} ordered a spare part",
    "{b} gave a short talk on {topic} to {n} guests",
    "the committee in {p} asked for a second opinion",
    "{a} painted the front room and counted {n} {t} in the store",
    "a letter from {p} praised the work of {b}",
    "the price of {t} rose by {k} percent within a month",
    "{a} could not open the archive because the key was missing",
    "the {w} team finished its tests a week early",
    "{b} proposed a course about {topic} for the spring",
    "the power was cut at night and {n} {t} had to be thrown away",
    "{a} wrote down every measurement by hand",
    "a school class from {p} visited and stayed for {k} hours",
    "the roof above the {w} room leaked after the rain",
    "{b} signed the contract with a supplier in {p}",
    "{a} suggested to sell the van and to buy {k} bicycles",
    "the survey showed that {k} of {n} people were content",
)
KINDS = (
    ("Minutes of the meeting", "Item"),
    ("Weekly report of the {w} group", "Note"),
    ("Diary of {a}", "Day"),
    ("Log of the field station near {p}", "Entry"),
    ("History of a small company in {p}", "Year"),
    ("Newsletter of the {w} club", "News"),
    ("Inspection record", "Point"),
    ("Travel journal, {p}", "Stop"),
)
WORKS = (
    "garden",
    "research",
    "kitchen",
    "design",
    "rescue",
    "theatre",
    "harbour",
    "museum",
    "sales",
    "library",
)
DETAIL = ("", "", "", " This was not expected.", " Nobody objected.", " It has to be checked again next week.",
          " The reason is still unknown.", " Everyone was relieved.", " {b} will write the follow-up.")  # fmt: skip

TASKS = (
    "Give a title for this text. Answer with the title only.",
    "Which person is named first in the text? Reply with the name only.",
    "How many entries does the text have? Answer with a number.",
    "Is the tone of the text happy, neutral or sad? One word.",
    "Which place is named in the text? Reply with one place only.",
    "Summarise the text in one short sentence.",
    "Summarise the text in two sentences.",
    "Summarise the text in one paragraph.",
    "Pick the most important entry and say in one sentence why it matters.",
    "List all people named in the text, one per line.",
    "List the three main points as bullet points.",
    "Give each entry a headline of at most five words, as a numbered list.",
    "Repeat every entry in simpler words, as a numbered list, leaving nothing out.",
    "Rewrite the whole text as a story for children.",
    "Write an email of one paragraph to {b} that reports what happened.",
    "Write a formal letter to {a} that explains the first three entries and proposes what to do next.",
    "Write a report on the text with an introduction, one sentence for each entry, and a conclusion.",
    "Explain what went well and what went wrong, in two paragraphs.",
    "Write three questions that a reader could ask about the text.",
    "Write five quiz questions about the text, each with its answer.",
    "Continue the text with three more entries in the same style.",
    "Turn the text into a table with the columns number, person, event.",
    "Write a short poem about the text.",
    "Write a headline and a newspaper article of two paragraphs about the events.",
)


def document(rng: np.random.Generator, entries: int) -> tuple[str, dict[str, str]]:
    """A titled list of numbered entries, and the names that its tasks may use."""
    people = [NAMES[i] for i in rng.choice(len(NAMES), size=4, replace=False)]

    def words() -> dict[str, str]:
        a, b = rng.choice(len(people), size=2, replace=False)
        return {
            "a": people[a],
            "b": people[b],
            "p": pick(rng, PLACES),
            "t": pick(rng, THINGS),
            "t2": pick(rng, ("water", "air", "oil", "heat")),
            "w": pick(rng, WORKS),
            "topic": pick(rng, TOPICS),
            "n": str(int(rng.integers(11, 90))),
            "k": str(int(rng.integers(2, 10))),
            "m": str(int(rng.integers(2, 90)) * 50),
        }

    title, label = KINDS[int(rng.integers(len(KINDS)))]
    first = words()
    lines = [title.format(**first)]
    for k, event in enumerate(rng.choice(len(EVENTS), size=entries, replace=False)):
        sentence = (EVENTS[event] + "." + pick(rng, DETAIL)).format(**words())
        lines.append(f"{label} {k + 1}: {sentence[0].upper()}{sentence[1:]}")
    return "\n".join(lines), first


def make(rng: np.random.Generator) -> str:
    """One prompt: a document of 3 to 14 entries and a task, which stands before or after it."""
    text, names = document(rng, int(rng.integers(3, 15)))
    task = pick(rng, TASKS).format(**names)
    if rng.random() < 0.35:
        return f"{task}\n\n{text}"
    return f"{text}\n\n{task}"
