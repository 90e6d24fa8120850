"""Verdicts for people, in which GPUs that are alike share a line."""

import dataclasses
import re
from collections import defaultdict
from typing import NamedTuple

from runlog.verdict import Verdict
from tools.doctor.topology_checks import ranges

# What was found on one GPU, such as "GPU3: off", of several nodes with the host's name before it: "node1: GPU3: off".
ON_ONE_GPU = re.compile(r"(?P<before>(?:\S+: )?GPU)(?P<number>[0-9]+)(?P<behind>[: ].*)", re.DOTALL)


class _Common(NamedTuple):
    """The part that the verdicts on GPUs that are alike have in common."""

    check: str
    status: str
    before: str  # of the text that was found, up to the GPU's number
    behind: str  # and from there on
    wanted: str
    fix: str


def with_equal_gpus_in_one(verdicts: list[Verdict]) -> list[Verdict]:
    """Return the verdicts, with those that differ only in the number of the GPU joined into one.

    For example, the verdicts of a check that found "GPU0: off" and "GPU1: off" become one verdict, "GPU0-1: off", in
    the place of the first. All other verdicts stay as they are.

    Args:
        verdicts: The verdicts of the doctor's checks. The text `found` of a verdict may be of one GPU or of anything
            else.
    """
    # First collect the numbers of the GPUs whose verdicts can be joined. The key is what such verdicts have in common:
    # the check, the status, the texts "GPU" before and ": off" behind the number, and so on.
    gpus_by_common: dict[_Common, set[int]] = defaultdict(set)
    for verdict in verdicts:
        found = ON_ONE_GPU.fullmatch(verdict.found)  # a match of the text "GPU0: off"; None if it is not of one GPU
        if found:
            gpus_by_common[_common(verdict, found)].add(int(found["number"]))

    # Then show one verdict for each key: the first, with the numbers of all GPUs. The later ones are left out.
    shown: list[Verdict] = []
    joined: set[_Common] = set()  # keys of which `shown` has the joined verdict already
    for verdict in verdicts:
        found = ON_ONE_GPU.fullmatch(verdict.found)
        if found is None:  # not of one GPU
            shown.append(verdict)
            continue
        common = _common(verdict, found)
        if common not in joined:
            joined.add(common)
            gpus = ranges(sorted(gpus_by_common[common]))  # "0-1"
            found_on_all = f"{common.before}{gpus}{common.behind}"  # "GPU0-1: off"
            shown.append(dataclasses.replace(verdict, found=found_on_all))
    return shown


def _common(verdict: Verdict, found: re.Match[str]) -> _Common:
    """Return what a verdict on one GPU has in common with those on GPUs that are alike.

    Args:
        verdict: The verdict.
        found: The match of ON_ONE_GPU in what it found.
    """
    return _Common(verdict.check, verdict.status, found["before"], found["behind"], verdict.wanted, verdict.fix)
