"""The setting STRATEGY of a log of this project: its knobs, and into how many parts it divides a batch."""

from collections.abc import Iterator

from compliance.strict.own_log import own_log_rules
from runlog.text import printable

_AUTO = "auto"  # Paddle makes the program
_SWITCH_VALUES = ("0", "1", "true", "false")
_PARTS = "gradient_merge"
_MAX_NUMBER = 2**31 - 1  # of a number; Paddle's flags and attributes are of C's integers


def is_automatic(strategy: str) -> bool:
    """Return whether Paddle makes the program and chooses the optimizer by this value of STRATEGY, `auto`.

    Spaces around it do not count, as they do not when a run reads the setting.
    """
    return strategy.strip() == _AUTO


def _entries(strategy: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each knob that a STRATEGY names, such as ("gradient_merge", "2"), in its order."""
    for part in strategy.split(","):
        entry = part.strip()
        if entry:
            name, _, value = entry.partition("=")
            yield name, value


def wrong_knobs(strategy: str) -> Iterator[str]:
    """Yield a sentence for each invalid knob of a STRATEGY: an unknown one, or one that cannot have its value.

    own_log.yaml has the knobs of this project, the kinds of their values, and the least value of each knob that is a
    number. No run starts with an invalid knob.

    Args:
        strategy: The value of the setting: `auto`, or knobs as "enable_addto=0,gradient_merge=2"; empty for none.
    """
    if is_automatic(strategy):
        return
    rules = own_log_rules()
    for name, value in _entries(strategy):
        kind = rules.knobs_of_strategy.get(name)
        if kind is None:
            yield f"STRATEGY has {printable(name)}, which is not a knob of this project"
        elif not _is_of_kind(value, kind):
            yield f"STRATEGY has {name}={printable(value)}, which is not a {kind}"
        elif kind != "switch" and not _is_in_range(name, float(value)):
            yield f"STRATEGY has {name}={printable(value)}; it must be {rules.least_of_knob[name]} to {_MAX_NUMBER}"


def _is_of_kind(value: str, kind: str) -> bool:
    """Return whether the text behind a knob's `=` is of the knob's kind.

    Args:
        value: The text.
        kind: `switch`, `whole number` or `number`.
    """
    if kind == "switch":
        return value.lower() in _SWITCH_VALUES
    if kind == "whole number":
        return _whole_number(value) is not None
    return _is_written_plainly(value) and _is_float(value)


def _is_in_range(knob: str, number: float) -> bool:
    """Return whether a number is one that a knob can have: its least value in own_log.yaml to _MAX_NUMBER (2^31 - 1).

    Args:
        knob: The name of a knob whose value is a number.
        number: The number. NaN is in no range.
    """
    return own_log_rules().least_of_knob[knob] <= number <= _MAX_NUMBER


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_written_plainly(number: str) -> bool:
    """Return whether a number has neither digits of another script nor underscores, both of which Python takes."""
    return number.isascii() and "_" not in number


def _whole_number(text: str) -> int | None:
    """Return a whole number that is written plainly; None if the text is none."""
    if not _is_written_plainly(text):
        return None
    try:
        return int(text)
    except ValueError:
        return None


def parts_of_batch(strategy: str) -> int | None:
    """Return into how many parts STRATEGY divides a batch: 2 for "enable_addto=0,gradient_merge=2".

    Args:
        strategy: The value of the setting: knobs, divided by commas. If gradient_merge stands there twice, for example
            where a user adds one to those of a config file, the last one counts.

    Returns:
        The number; 1 without gradient_merge, and None for a value that is not a whole number from 1 to _MAX_NUMBER.
    """
    value = "1"
    for name, value_of_knob in _entries(strategy):
        if name == _PARTS:
            value = value_of_knob  # a later one replaces it
    parts = _whole_number(value)
    if parts is None or not _is_in_range(_PARTS, parts):
        return None
    return parts
