"""Verdicts for people, in which GPUs that are alike share a line."""

import dataclasses
import re

from runlog.verdict import Verdict
from tools.doctor.topology_checks import ranges

# What was found on one GPU, as "GPU3: off", of several nodes with the host's name before it: "node1: GPU3: off".
ON_ONE_GPU = re.compile(r"(?P<before>(?:\S+: )?GPU)(?P<number>[0-9]+)(?P<behind>[: ].*)", re.DOTALL)


def with_equal_gpus_in_one(verdicts: list[Verdict]) -> list[Verdict]:
    """Return verdicts in which those that are equal but for the number of the GPU are one: "GPU0-3,5: off".

    It stands where the first of them did.

    Args:
        verdicts: The verdicts of the doctor's checks, each on one GPU or on anything else.
    """
    numbers_by_place: dict[int, set[int]] = {}  # the GPUs that share a verdict, by its place in `shown`
    places: dict[tuple[str, ...], int] = {}  # of what the verdicts on several GPUs have in common
    shown: list[Verdict] = []
    for verdict in verdicts:
        found = ON_ONE_GPU.fullmatch(verdict.found)
        if found is None:
            shown.append(verdict)
            continue
        common = (verdict.check, verdict.status, found["before"], found["behind"], verdict.wanted, verdict.fix)
        if common not in places:
            places[common] = len(shown)
            numbers_by_place[len(shown)] = set()
            shown.append(verdict)
        place = places[common]
        numbers = numbers_by_place[place]
        numbers.add(int(found["number"]))
        found_on_all = f"{found['before']}{ranges(sorted(numbers))}{found['behind']}"
        shown[place] = dataclasses.replace(verdict, found=found_on_all)
    return shown
