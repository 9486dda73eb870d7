"""A policy has one look in every figure, and policies that meet are told apart by the colour-blind.

Truth: simulated sight of the three kinds of colour blindness, in linear RGB and at full strength, by Machado,
Oliveira and Fernandes, IEEE TVCG 15 (2009), table 1; distances in CIE L*a*b* (1976), of which about 2 is just
noticed; contrast by WCAG 2.1.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from experiments import report
from experiments.style import BLACK, DARK, DASHES, FAMILIES, LOOKS, MARKERS, OTHER_COLOURS, looks
from sim.policies import ALIASES, POLICIES

SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# Who stands beside whom: the predictors, the policies that know no lengths or some, those that rank, and bounds.
MEET = (
    "fcfs sjf egtp estp semantic mean last constant scenario prompt-length",
    "fcfs sjf egtp estp srpt trail las mlfq gittins cvar",
    "fcfs sjf egtp estp trail ltr ssjf",
    "fcfs sjf egtp estp ljf random",
)


def linear(colour: str) -> np.ndarray:
    seen = np.array(to_rgb(colour))
    return np.where(seen <= 0.04045, seen / 12.92, ((seen + 0.055) / 1.055) ** 2.4)


def lab(colour: str, sight: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour (D65) as it is seen."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(sight @ linear(colour), 0, 1) / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str, sight: str) -> float:
    return float(np.linalg.norm(lab(one, SIGHT[sight]) - lab(other, SIGHT[sight])))


def contrast(one: str, other: str) -> float:
    light = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return float((light[1] + 0.05) / (light[0] + 0.05))


def test_the_distances_and_contrasts_are_right() -> None:
    # Sharma, Wu and Dalal (2005) start from such values; white on black is 21 by definition.
    assert lab("#ffffff", np.eye(3)) == pytest.approx([100, 0, 0], abs=0.02)
    assert lab("#ff0000", np.eye(3)) == pytest.approx([53.24, 80.09, 67.20], abs=0.05)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    # Grey stays grey, whoever looks.
    assert all(distance("#777777", "#777777", sight) == 0 for sight in SIGHT)
    assert lab("#777777", SIGHT["deuteranopia"])[1:] == pytest.approx([0, 0], abs=0.1)


@pytest.mark.parametrize("sight", SIGHT)
def test_policies_that_meet_are_told_apart_by_their_colour(sight: str) -> None:
    page = {name: DARK.get(look.colour, "#e4e7eb") for name, look in LOOKS.items()}
    for group in MEET:
        for one, other in combinations(group.split(), 2):
            assert distance(LOOKS[one].colour, LOOKS[other].colour, sight) > 16.5, (one, other)
            assert distance(page[one], page[other], sight) > 12, (one, other)
    for one, other in combinations(set(LOOKS) - {"asked"}, 2):
        assert distance(LOOKS[one].colour, LOOKS[other].colour, sight) > 10.5, (one, other)
        assert distance(page[one], page[other], sight) > 9, (one, other)


def test_colours_are_seen_on_their_ground() -> None:
    ground = re.findall(r"--page: (#\w{6})", (Path(report.__file__).parent / "page.html").read_text())[1]
    for colour in {look.colour for look in LOOKS.values()} | set(OTHER_COLOURS):
        assert contrast(colour, "#ffffff") > 2.2, colour
        assert colour == BLACK or contrast(DARK[colour], ground) > 3.9, colour


def test_no_two_lines_look_alike_without_their_colour() -> None:
    known = [(look.marker, look.filled) for look in LOOKS.values() if look != LOOKS["asked"]]
    assert len(known) == len(set(known))
    for group in MEET:
        lines = [LOOKS[name] for name in group.split()]
        assert len({(str(look.dash), look.marker, look.filled) for look in lines}) == len(lines)
    assert len({str(LOOKS[name].dash) for name in MEET[0].split()[:4]}) == 4


def test_a_policy_keeps_its_look() -> None:
    assert looks(["estp", "fcfs"])["estp"] == looks(["sjf", "estp"])["estp"] == LOOKS["estp"]
    assert looks(["shortest,predictor=estp"]).popitem()[1] == LOOKS["estp"]
    for name in {*POLICIES, *ALIASES} & {*LOOKS, *FAMILIES}:
        assert looks([name, "sjf-noise", "mine.py:Mine", "fcfs"])[name].colour == looks([name])[name].colour
    assert set(FAMILIES.values()) <= set(LOOKS)


def test_strangers_differ_from_each_other() -> None:
    strangers = [f"{letter}.py:{letter.upper()}" for letter in "abcdef"]
    found = looks(strangers)
    assert {look.colour for look in found.values()} == set(OTHER_COLOURS)
    many = looks([*LOOKS, *strangers])
    assert len({(str(look.dash), look.marker, look.filled) for look in many.values()}) == len(many)
    assert all(look.dash in DASHES and (look.marker, look.filled) in MARKERS for look in found.values())


def test_a_family_shares_its_colour_and_not_its_line() -> None:
    names = ["estp", "estp-literal", "shortest,predictor=estp,sigma=0.5"]
    for beside in ([], ["fcfs"], ["a.py:A", "sjf"], [*LOOKS]):
        found = [looks([*dict.fromkeys([*beside, *names])])[name] for name in names]
        assert {look.colour for look in found} == {LOOKS["estp"].colour}
        assert found[0] == LOOKS["estp"]
        assert len({str(look.dash) for look in found}) == 3
        assert len({(look.marker, look.filled) for look in found}) == 3
