"""The expressions and statements of mlperf-logging's rules, as functions. None of their text is executed.

It is parsed, and only the forms below are known; another one is a SyntaxError.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class State(dict[str, Any]):
    """`s` of the rules of one file, and the files that it enqueues, each with the event that made it."""

    def __init__(self, items: Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__(items)
        self.enqueued: list[tuple[str, Any]] = []


def is_integer(value: float) -> bool:
    """Tell whether a value is an integer, as mlp_compliance.py does."""
    return abs(round(value) - value) < 0.00001


Code = Callable[[Any, State], Any]  # of an event, None in BEGIN and END


def holds(code: Code, event: Any, state: State) -> bool:
    """Return whether a check is met; one that fails is not, as the official checker takes it."""
    try:
        return bool(code(event, state))
    except Exception:  # noqa: BLE001  a log may hold anything
        return False


def expression(text: str) -> Code:
    """Return the function that computes an expression, such as `v['value'] > 0`, of an event and the state."""
    return _expression(ast.parse(text.strip(), mode="eval").body)


def statements(text: str) -> list[Code]:
    """Return a function for each statement of a text, such as `s['seeds'] += 1`: it changes the state by an event."""
    return [_statement(node) for node in ast.parse(text.strip()).body]


_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b},
}
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitOr: operator.or_},  # of truth values
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{"int": int, "abs": abs, "min": min, "max": max, "is_integer": is_integer},
    **{"len": len, "float": float, "sorted": sorted},
    **{"math.ceil": math.ceil, "math.floor": math.floor, "math.log2": math.log2},
}
_NAMES: Mapping[str, Code] = {
    "s": lambda event, s: s,
    "v": lambda event, s: {"value": event.value, "metadata": event.metadata},
    "v['value']": lambda event, s: event.value,
    "v['metadata']": lambda event, s: event.metadata,
    "ll.timestamp": lambda event, s: float(event.time_ms),
}


def _expression(node: ast.expr) -> Code:
    """Return the function of an event and the state that computes an expression of a rule, such as `v['value'] > 0`.

    The functions of its parts are made first, so that nothing is parsed when a rule is applied to an event. Raises
    SyntaxError for a form that no rule of mlperf-logging has.
    """
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        named = _NAMES.get(ast.unparse(node))
        if named is not None:
            return named
    match node:
        case ast.Constant(value=value):
            return lambda event, s: value
        case ast.Subscript(value=container, slice=index):
            table = _expression(container)
            key = _expression(index)
            return lambda event, s: table(event, s)[key(event, s)]
        case ast.List(elts=items):
            parts = [_expression(item) for item in items]
            return lambda event, s: [part(event, s) for part in parts]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            denied = _expression(operand)
            return lambda event, s: not denied(event, s)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _expression(operand)
            return lambda event, s: -positive(event, s)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition = _expression(test)
            yes = _expression(body)
            no = _expression(orelse)
            return lambda event, s: yes(event, s) if condition(event, s) else no(event, s)
        case ast.BoolOp(op=joined, values=values):  # the rules ask only whether it holds
            terms = [_expression(value) for value in values]
            enough = all if isinstance(joined, ast.And) else any
            return lambda event, s: enough(term(event, s) for term in terms)
        case ast.Compare():
            return _comparison(node)
        case ast.BinOp():
            return _arithmetic(node)
        case ast.Call():
            return _call(node)
    raise SyntaxError


def _comparison(node: ast.Compare) -> Code:
    """Return the function that computes a comparison, which may be a chain such as `0 < v['value'] <= 1`.

    A chain holds if each of its comparisons does. As in Python, its sides are computed from left to right, and no
    farther than the first comparison that does not hold: a side behind it could raise. Raises SyntaxError for an
    operator that is not known.
    """
    if not all(type(op) in _COMPARISONS for op in node.ops):
        raise SyntaxError
    compares = [_COMPARISONS[type(op)] for op in node.ops]
    sides = [_expression(side) for side in (node.left, *node.comparators)]
    if len(compares) == 1:
        [only_compare] = compares
        [first, second] = sides
        return lambda event, s: only_compare(first(event, s), second(event, s))

    def chain(event: Any, s: State) -> bool:
        left = sides[0](event, s)
        for compare, right_side in zip(compares, sides[1:], strict=True):
            right = right_side(event, s)
            if not compare(left, right):
                return False
            left = right
        return True

    return chain


def _arithmetic(node: ast.BinOp) -> Code:
    """Return the function that computes `left op right`, of numbers alone: for others it raises TypeError.

    A text times a number, or formatted by %, could take all memory, and meets no rule. For the same reason a power must
    have a fraction for its exponent, as in `v['value'] ** 0.5`: that of whole numbers has no bound.
    """
    compute = _ARITHMETIC.get(type(node.op))
    has_fraction = isinstance(node.right, ast.Constant) and isinstance(node.right.value, float)
    if compute is None or (compute is operator.pow and not has_fraction):
        raise SyntaxError
    left = _expression(node.left)
    right = _expression(node.right)

    def computed(event: Any, s: State) -> Any:
        one = left(event, s)
        other = right(event, s)
        if not isinstance(one, int | float | complex) or not isinstance(other, int | float | complex):
            raise TypeError("no number")
        return compute(one, other)

    return computed


def _call(node: ast.Call) -> Code:
    """Return the function that computes a call in a rule's expression, from an event and the state `s` of the rules.

    The known forms are `isinstance(X, int)`, `s.get(X)`, a text's `"...".format(X)`, and the functions of _FUNCTIONS,
    such as `max(X, Y)`. Every X and Y is an expression itself. Raises SyntaxError for any other call.
    """
    if node.keywords:
        raise SyntaxError
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[tested, ast.Name(id="int")]):
            value = _expression(tested)
            return lambda event, s: isinstance(value(event, s), int)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="s"), attr="get"), args=[name]):
            value = _expression(name)
            return lambda event, s: s.get(value(event, s))
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as text), attr="format"), args=[filled_in]):
            value = _expression(filled_in)
            return lambda event, s: text.format(value(event, s))
    function = _FUNCTIONS.get(ast.unparse(node.func))
    if function is None or not node.args:
        raise SyntaxError
    arguments = [_expression(argument) for argument in node.args]
    return lambda event, s: function(*(argument(event, s) for argument in arguments))


def _statement(node: ast.stmt) -> Code:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="enqueue_config"), args=[argument], keywords=[])):
            file = _expression(argument)
            return lambda event, s: s.enqueued.append((file(event, s), event))
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="s"), attr="update"), args=[ast.Dict() as new])
        ):
            items = [(_expression(key), _expression(value)) for key, value in zip(new.keys, new.values, strict=True)]  # type: ignore[arg-type]
            return lambda event, s: s.update({key(event, s): value(event, s) for key, value in items})
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id="s"), slice=ast.Constant(value=str() as name))]):
            value = _expression(node.value)
            return lambda event, s: s.__setitem__(name, value(event, s))
        case ast.AugAssign(target=ast.Subscript(value=ast.Name(id="s"), slice=ast.Constant(value=str() as name))):
            if isinstance(node.op, ast.Add) and isinstance(node.value, ast.List):
                added = _expression(node.value)
                return lambda event, s: s[name].extend(added(event, s))
            changed = _arithmetic(ast.BinOp(node.target, node.op, node.value))
            return lambda event, s: s.__setitem__(name, changed(event, s))
        case ast.If(test=test, body=body, orelse=[]):
            asked, steps = _expression(test), [_statement(step) for step in body]
            return lambda event, s: [step(event, s) for step in steps] if asked(event, s) else None
    raise SyntaxError
