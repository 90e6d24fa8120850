"""The checks of mlperf-logging's rules: what each looks at, the function that decides it, and its words.

In the text of a check, `v` is the event and `ll.timestamp` its time. `s` is the state, in which the code of the rules
keeps values by name: at a run_start, for instance, it sets s['run_started'] to True.
"""

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from compliance.official.check_words import in_words
from compliance.official.language import Expression, State, compile_expression, parse_expression
from runlog.reader import Event

# For each name in the state, such as `run_started`, the key whose events set it, such as run_start.
KeyByStateName = Mapping[str, str]
_NO_STATE: KeyByStateName = MappingProxyType({})
# Such as sorted(s['initialized_tensors']) == sorted(['conv0_weight', 'conv0_bias'])
_CHECK_OF_NAMES = re.compile(r"sorted\(s\['(?P<state_name>\w+)'\]\) == sorted\((?P<names>\[.*\])\)")


class KeyOrder(NamedTuple):
    """The place that an event must have among the events of another key.

    - `must_precede_other`: before all events of `other_key`
    - otherwise: after at least one event of `other_key`
    """

    other_key: str
    must_precede_other: bool

    @property
    def in_words(self) -> str:
        """Return the place in words, such as `after run_start`."""
        if self.must_precede_other:
            return f"before {self.other_key}"
        return f"after {self.other_key}"


@dataclass(frozen=True, kw_only=True)
class Check:
    """An expression of a rule that must hold for an event.

    `aspect` is the part of the event that it looks at: value, metadata, order or time. `order` is the place that a
    check of the order demands; None for any other check.
    """

    node: ast.expr
    is_met: Expression
    aspect: str
    order: KeyOrder | None = None

    @functools.cached_property
    def words(self) -> str:
        """Return in words what the check asks for, such as `above 0` or `after run_start`."""
        if self.order is not None:
            return self.order.in_words
        return in_words(self.node)

    @functools.cached_property
    def is_smallest_best(self) -> bool:
        """Whether the smallest value is nearest to what the check asks for: it asks for at most N, not for at least N.

        v['value'] <= 3.3 and v['value'] > 0     -> True, a loss
        v['value'] >= 0.8 and v['value'] <= 1.0  -> False, an accuracy
        """
        comparisons = set()
        for part in ast.walk(self.node):
            if isinstance(part, ast.Compare) and ast.unparse(part.left) == "v['value']":
                comparisons.add(type(part.ops[0]))
        return ast.LtE in comparisons and ast.GtE not in comparisons

    @functools.cached_property
    def has_target(self) -> bool:
        """Whether the check has a target for the value: a number other than 0 and 1, which bound any accuracy.

        v['value'] >= 0.8 and v['value'] <= 1.0  -> True
        v['value'] >= s['target_accuracy']       -> True, the state has the number
        v['value'] < 1.0                         -> False, as in most rule files for open runs
        """
        for part in ast.walk(self.node):
            if isinstance(part, ast.Name) and part.id == "s":
                return True
            if isinstance(part, ast.Constant) and isinstance(part.value, int | float):
                is_only_bound = part.value in (0, 1)
                if not is_only_bound:
                    return True
        return False


def read_check(text: str, key_by_state_name: KeyByStateName = _NO_STATE) -> Check:
    """Compile a check of a rule, and tell which aspect of an event it looks at.

    In a check, `v` is the event, `ll.timestamp` its time, and s['run_started'] is True once there was a run_start. The
    first row that fits gives the aspect:

        is s['run_started'] or not s['run_started']         "order": after a run_start, or before any
        has ll.timestamp, as in ll.timestamp < 9            "time"
        has v['metadata'], as in 'file' in v['metadata']    "metadata"
        any other, such as v['value'] > 0                   "value"

    Args:
        text: The text of the check.
        key_by_state_name: For each name in the state `s`, the key of the events that set it, such as
            {"run_started": "run_start"}.

    Raises:
        SyntaxError: The text is not an expression, or has a form that no rule of mlperf-logging has.
    """
    node = parse_expression(text)
    is_met = compile_expression(node)  # a function of an event and the state
    order = _demanded_order(node, key_by_state_name)  # None unless the whole check has the form of the first row
    if order is not None:
        return Check(node=node, is_met=is_met, aspect="order", order=order)
    normal_text = ast.unparse(node)  # the same expression, in the quotes that are searched for
    # The other rows are told by a part that the check has anywhere.
    return Check(node=node, is_met=is_met, aspect=_aspect_by_text(normal_text))


def _demanded_order(node: ast.expr, key_by_state_name: KeyByStateName) -> KeyOrder | None:
    """Return the order that a check demands: its event must come after an event of another key, or before all of them.

        s['run_started'], or s['run_started'] == True    -> after a run_start, whose rule sets s['run_started'] to True
        not s['run_started']                             -> before any run_start

    Args:
        node: The syntax tree of the check.
        key_by_state_name: For each name in the state `s`, the key of the events that set it, such as
            {"run_started": "run_start"}.

    Returns:
        The other key, and whether the event must come before its events. None if the check has another form, or its
        name is not in `key_by_state_name`.
    """
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        must_precede_other = True
        tested = node.operand  # without the `not`
    else:
        must_precede_other = False
        tested = node
    state_name = _name_in_state(tested)  # such as "run_started"; None for another form
    if state_name is None or state_name not in key_by_state_name:
        return None
    return KeyOrder(other_key=key_by_state_name[state_name], must_precede_other=must_precede_other)


def _name_in_state(node: ast.expr) -> str | None:
    """Return NAME if an expression is `s['NAME']` or `s['NAME'] == True`; None for any other.

    Args:
        node: The syntax tree of the expression.
    """
    match node:
        case ast.Compare(left=compared, ops=[ast.Eq()], comparators=[ast.Constant(value=True)]):
            return _name_in_state(compared)
        case ast.Subscript(value=ast.Name(id="s"), slice=ast.Constant(value=str() as name)):
            return name
    return None


def _aspect_by_text(expression_text: str) -> str:
    """Return the part of an event that an expression looks at: time, metadata or value.

    Args:
        expression_text: The text of the expression, as ast.unparse writes it.
    """
    if "ll.timestamp" in expression_text:
        return "time"
    if "v['metadata']" in expression_text:
        return "metadata"
    return "value"


class ComparedTimes(NamedTuple):
    """The two sides of a check of the time, `passed < limit`, both in milliseconds."""

    passed_ms: float
    limit_ms: float


def compared_times(check: Check, event: Event, state: State) -> ComparedTimes:
    """Return the two times that a check of an event's time compares, in ms: the time passed and its limit.

    For instance, an init_stop at 90,000 ms must come within 30 minutes after the first init_start, at 30,000 ms:

        check           ll.timestamp - s['first_init_start'] < s['compile_time_mins'] * 60 * 1000.0
        ll.timestamp    90_000, the time of the event
        s               {"first_init_start": 30_000, "compile_time_mins": 30}, the state
        result          passed_ms=60_000, the left side; limit_ms=1_800_000, the right side

    Args:
        check: The check, a comparison of the form LEFT < RIGHT.
        event: The event.
        state: The values that the code of the rules has set.
    """
    assert isinstance(check.node, ast.Compare), "the checks of the time in the rule files are comparisons"
    compute_passed = compile_expression(check.node.left)  # a function of the event and the state
    compute_limit = compile_expression(check.node.comparators[0])  # the right side of the comparison
    return ComparedTimes(compute_passed(event, state), compute_limit(event, state))


class WantedNames(NamedTuple):
    """The names that all events of a key together must list, each once, such as the tensors of the reference model.

    The code of the key's rule collects the listed names in the state, as a list called `state_name`.
    """

    key: str
    state_name: str
    names: Sequence[str]


def read_wanted_names(text: str, key_by_state_name: KeyByStateName) -> WantedNames:
    """Return the names that a check wants in a list of the state, and the key of the events that fill the list.

    For instance, the rule of weights_initialization adds the name of each event's tensor to a list:

        text                 sorted(s['initialized_tensors']) == sorted(['conv0_weight', 'conv0_bias'])
        key_by_state_name    {"initialized_tensors": "weights_initialization"}
        -> WantedNames("weights_initialization", "initialized_tensors", ["conv0_weight", "conv0_bias"])

    Args:
        text: The text of the check.
        key_by_state_name: For each name in the state `s`, such as that of the list, the key of the events that set it
            or add to it.

    Raises:
        SyntaxError: The text has another form than in the example, or no event fills the list.
    """
    normal_text = ast.unparse(parse_expression(text))  # on one line, with the quotes and blanks of the example
    match = _CHECK_OF_NAMES.fullmatch(normal_text)
    if match is None:
        raise SyntaxError("another form than that of the example")
    state_name = match["state_name"]  # such as "initialized_tensors"
    if state_name not in key_by_state_name:
        raise SyntaxError("no event fills the list")
    try:
        names = ast.literal_eval(match["names"])  # from a text such as "['conv0_weight', 'conv0_bias']"
    except ValueError:
        raise SyntaxError("the wanted names are not all constants") from None
    return WantedNames(key=key_by_state_name[state_name], state_name=state_name, names=names)
