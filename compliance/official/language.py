"""The expressions and statements of mlperf-logging's rules, as functions. None of their text is executed.

The text is parsed. Only the forms below are known; any other form is a SyntaxError.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class State(dict[str, Any]):
    """The state of one rule file: the names that its code sets, `s` in an expression, and the files that it enqueued.

    `enqueued` has the name of each file, and the event whose code enqueued it.
    """

    def __init__(self, items: Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__(items)
        self.enqueued: list[tuple[str, Any]] = []


def is_integer(value: float) -> bool:
    """Tell whether a value is an integer, as mlp_compliance.py does."""
    return abs(round(value) - value) < 0.00001


# A compiled expression or statement: a function of an event (None before the first and after the last) and the state.
Code = Callable[[Any, State], Any]


def holds(code: Code, event: Any, state: State) -> bool:
    """Return whether a check is met. As in the official checker, a check that raises an exception is not met."""
    try:
        return bool(code(event, state))
    except Exception:  # noqa: BLE001  a log may hold anything
        return False


def expression(text: str) -> Code:
    """Return the function that computes an expression, such as `v['value'] > 0`, from an event and the state.

    Raises SyntaxError for a form that no rule of mlperf-logging has.
    """
    return _compile_expression(ast.parse(text.strip(), mode="eval").body)


def statements(text: str) -> list[Code]:
    """Return a function for each statement of a text, such as `s['seeds'] += 1`. It changes the state.

    Raises SyntaxError for a form that no rule of mlperf-logging has.
    """
    return [_compile_statement(node) for node in ast.parse(text.strip()).body]


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
_EVENT_AND_STATE: Mapping[str, Code] = {  # the expressions by which a rule refers to the event and the state
    "s": lambda event, s: s,
    "v": lambda event, s: {"value": event.value, "metadata": event.metadata},
    "v['value']": lambda event, s: event.value,
    "v['metadata']": lambda event, s: event.metadata,
    "ll.timestamp": lambda event, s: float(event.time_ms),
}


def _compile_expression(node: ast.expr) -> Code:
    """Compile an expression of a rule, such as `v['value'] > 0`, into a function of the event `v` and the state `s`.

    Raises SyntaxError for a form that no rule of mlperf-logging has.
    """
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        compute_known = _EVENT_AND_STATE.get(ast.unparse(node))  # such as v['value']
        if compute_known is not None:
            return compute_known
    match node:
        case ast.Constant(value=value):
            return lambda event, s: value
        case ast.Subscript(value=container, slice=index):
            compute_table = _compile_expression(container)
            compute_key = _compile_expression(index)
            return lambda event, s: compute_table(event, s)[compute_key(event, s)]
        case ast.List(elts=items):
            parts = [_compile_expression(item) for item in items]
            return lambda event, s: [part(event, s) for part in parts]
        case ast.UnaryOp():
            return _compile_unary(node)
        case ast.IfExp():
            return _compile_conditional(node)
        case ast.BoolOp():
            return _compile_and_or(node)
        case ast.Compare():
            return _compile_comparison(node)
        case ast.BinOp():
            return _compile_arithmetic(node)
        case ast.Call():
            return _compile_call(node)
    raise SyntaxError


def _compile_unary(node: ast.UnaryOp) -> Code:
    """Compile `not X` or `-X` into a function of event and state. Raises SyntaxError for another operator."""
    compute = _compile_expression(node.operand)
    if isinstance(node.op, ast.Not):
        return lambda event, s: not compute(event, s)
    if isinstance(node.op, ast.USub):
        return lambda event, s: -compute(event, s)
    raise SyntaxError


def _compile_conditional(node: ast.IfExp) -> Code:
    """Compile `X if TEST else Y` into a function of event and state."""
    condition = _compile_expression(node.test)
    if_true = _compile_expression(node.body)
    if_false = _compile_expression(node.orelse)
    return lambda event, s: if_true(event, s) if condition(event, s) else if_false(event, s)


def _compile_and_or(node: ast.BoolOp) -> Code:
    """Compile `X and Y` or `X or Y` into a function that gives True or False: no rule uses another value of `or`."""
    terms = [_compile_expression(value) for value in node.values]
    all_or_any = all if isinstance(node.op, ast.And) else any
    return lambda event, s: all_or_any(term(event, s) for term in terms)


def _compile_comparison(node: ast.Compare) -> Code:
    """Compile a comparison, which may be a chain such as `0 < v['value'] <= 1`, into a function of event and state.

    A chain holds if each of its comparisons holds. As in Python, its operands are computed from left to right, up to
    the first comparison that does not hold, because a later operand could raise an exception.

    Raises SyntaxError for an operator that no rule of mlperf-logging has.
    """
    if not all(type(op) in _COMPARISONS for op in node.ops):
        raise SyntaxError
    operators = [_COMPARISONS[type(op)] for op in node.ops]
    operands = [_compile_expression(operand) for operand in (node.left, *node.comparators)]
    if len(operators) == 1:  # nearly all comparisons: this is faster than the chain below
        [only_operator] = operators
        [left_operand, right_operand] = operands
        return lambda event, s: only_operator(left_operand(event, s), right_operand(event, s))

    def chain(event: Any, s: State) -> bool:
        left = operands[0](event, s)
        for compare, right_operand in zip(operators, operands[1:], strict=True):
            right = right_operand(event, s)
            if not compare(left, right):
                return False  # as in Python, the operands after this one are not computed: they could raise
            left = right
        return True

    return chain


def _compile_arithmetic(node: ast.BinOp) -> Code:
    """Compile an operation such as `v['value'] * 2` into a function of event and state.

    Two rules keep an operation from taking all memory. The function raises TypeError if an operand is not a number: a
    text times a number may be of any length. The exponent of a power must be a constant float, as in
    `v['value'] ** 0.5`: the power of two whole numbers may have any number of digits.

    Raises SyntaxError for another power, and for an operator that no rule of mlperf-logging has.
    """
    compute = _ARITHMETIC.get(type(node.op))
    if compute is None:
        raise SyntaxError
    is_exponent_a_float = isinstance(node.right, ast.Constant) and isinstance(node.right.value, float)
    if compute is operator.pow and not is_exponent_a_float:
        raise SyntaxError  # the power of two whole numbers may have any number of digits, and so take all memory
    left_operand = _compile_expression(node.left)
    right_operand = _compile_expression(node.right)

    def operation(event: Any, s: State) -> Any:
        left = left_operand(event, s)
        right = right_operand(event, s)
        if not isinstance(left, int | float | complex) or not isinstance(right, int | float | complex):
            raise TypeError("no number")  # a text times a number may be of any length, and so take all memory
        return compute(left, right)

    return operation


def _compile_call(node: ast.Call) -> Code:
    """Compile a call in a rule's expression into a function of an event and the state. Four forms are known:

    - `isinstance(X, int)`
    - `s.get(X)`
    - `"a text {}".format(X)`
    - a function of _FUNCTIONS, such as `max(X, Y)`

    X and Y are expressions themselves. Raises SyntaxError for any other call.
    """
    if node.keywords:
        raise SyntaxError
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[tested, ast.Name(id="int")]):
            compute_value = _compile_expression(tested)
            return lambda event, s: isinstance(compute_value(event, s), int)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="s"), attr="get"), args=[name]):
            compute_value = _compile_expression(name)
            return lambda event, s: s.get(compute_value(event, s))
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as text), attr="format"), args=[filled_in]):
            compute_value = _compile_expression(filled_in)
            return lambda event, s: text.format(compute_value(event, s))
    function = _FUNCTIONS.get(ast.unparse(node.func))
    if function is None or not node.args:
        raise SyntaxError
    arguments = [_compile_expression(argument) for argument in node.args]
    return lambda event, s: function(*(argument(event, s) for argument in arguments))


def _compile_statement(node: ast.stmt) -> Code:
    """Compile a statement of a rule, such as `s['seeds'] += 1`, into a function that changes the state.

    Raises SyntaxError for a form that no rule of mlperf-logging has.
    """
    match node:
        # enqueue_config(FILE)
        case ast.Expr(value=ast.Call(func=ast.Name(id="enqueue_config"), args=[argument], keywords=[])):
            compute_file = _compile_expression(argument)
            return lambda event, s: s.enqueued.append((compute_file(event, s), event))
        # s.update({NAME: VALUE})
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="s"), attr="update"), args=[ast.Dict() as new])
        ):
            # `{**table}` has the key None, which _compile_expression refuses.
            keys = [_compile_expression(key) for key in new.keys]  # type: ignore[arg-type]
            values = [_compile_expression(value) for value in new.values]
            items = list(zip(keys, values, strict=True))
            return lambda event, s: s.update({key(event, s): value(event, s) for key, value in items})
        # s['name'] = VALUE
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id="s"), slice=ast.Constant(value=str() as name))]):
            compute_value = _compile_expression(node.value)
            return lambda event, s: s.__setitem__(name, compute_value(event, s))
        # s['name'] += [VALUE], or another operation on a number
        case ast.AugAssign(target=ast.Subscript(value=ast.Name(id="s"), slice=ast.Constant(value=str() as name))):
            if isinstance(node.op, ast.Add) and isinstance(node.value, ast.List):
                compute_added = _compile_expression(node.value)
                return lambda event, s: s[name].extend(compute_added(event, s))
            compute_changed = _compile_arithmetic(ast.BinOp(node.target, node.op, node.value))
            return lambda event, s: s.__setitem__(name, compute_changed(event, s))
        # if CONDITION: STATEMENTS
        case ast.If(test=test, body=body, orelse=[]):
            condition = _compile_expression(test)
            steps = [_compile_statement(step) for step in body]
            return lambda event, s: [step(event, s) for step in steps] if condition(event, s) else None
    raise SyntaxError
