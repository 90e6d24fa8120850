"""The expressions and statements of mlperf-logging's rules, as functions. None of their text is executed.

The text is parsed. Only the forms below are known; any other form is a SyntaxError.

In a rule, `v` is the event and `s` the state. `ll.timestamp` is the event's time.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from runlog.reader import Event


class Enqueued(NamedTuple):
    """A rule file that is to be applied, too, and the event whose value named it."""

    file: str
    event: Event


class State(dict[str, Any]):
    """The state of one rule file, `s` in an expression: the names that its code sets, and the files it enqueued."""

    def __init__(self, items: Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__(items)
        self.enqueued: list[Enqueued] = []


def is_integer(value: float) -> bool:
    """Return whether a value is an integer, within 0.00001, as mlp_compliance.py does.

    Args:
        value: The value that a rule asks about.
    """
    return abs(round(value) - value) < 0.00001


# A compiled expression computes a value from an event (None before the first and after the last) and the state.
Expression = Callable[[Any, State], Any]
# A compiled statement changes the state. It gets the same two arguments.
Statement = Callable[[Any, State], None]


def holds(check: Expression, event: Event | None, state: State) -> bool:
    """Return whether a check is met. As in the official checker, a check that raises an exception is not met.

    Args:
        check: The compiled expression of the check.
        event: The event, `v` in the expression. None if there is none, such as before the first one.
        state: The state, `s` in the expression: values by their names, which rules set as the events come.
    """
    try:
        return bool(check(event, state))
    except Exception:  # noqa: BLE001  a log may hold anything
        return False


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression.

    Args:
        text: The expression, such as `v['value'] > 0`.

    Raises:
        SyntaxError: The text is not one expression of Python.
    """
    return ast.parse(text.strip(), mode="eval").body


def compile_statements(text: str) -> list[Statement]:
    """Return a function for each statement of a rule's code. It changes the state.

    Args:
        text: The code, such as `s['seeds'] += 1`.

    Raises:
        SyntaxError: A statement has a form that no rule of mlperf-logging has.
    """
    return [_compile_statement(node) for node in ast.parse(text.strip()).body]


def _is_in(item: Any, container: Any) -> bool:
    return item in container


_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.IsNot: operator.is_not,
    ast.In: _is_in,
}
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,  # of truth values
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "abs": abs,
    "min": min,
    "max": max,
    "len": len,
    "is_integer": is_integer,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.log2": math.log2,
}


# --- expressions ---


def compile_expression(node: ast.expr) -> Expression:
    """Return the function that computes an expression of a rule from an event and the state.

    Args:
        node: The syntax tree of the expression, such as that of `v['value'] > 0`, in which `v` is the event and `s` the
            state.

    Raises:
        SyntaxError: The expression has a form that no rule of mlperf-logging has.
    """
    match node:
        case ast.Name(id="v"):
            return _fields_of_event
        case ast.Name(id="s"):
            return _state_itself
        case ast.Attribute(value=ast.Name(id="ll"), attr="timestamp"):
            return _time_of_event
        case ast.Constant():
            return _compile_constant(node)
        case ast.List():
            return _compile_list(node)
        case ast.Subscript():
            return _compile_subscript(node)
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


def _fields_of_event(event: Event, _state: State) -> dict[str, Any]:
    """Compute `v`."""
    return {"value": event.value, "metadata": event.metadata}


def _state_itself(_event: Event | None, state: State) -> State:
    """Compute `s`."""
    return state


def _time_of_event(event: Event, _state: State) -> float:
    """Compute `ll.timestamp`, in milliseconds."""
    return float(event.time_ms)


def _compile_constant(node: ast.Constant) -> Expression:
    """Compile a number, a text, True, False or None."""
    value = node.value
    return lambda event, s: value


def _compile_list(node: ast.List) -> Expression:
    """Compile `[X, Y, ...]` into a function of event and state."""
    items = [compile_expression(item) for item in node.elts]

    def compute_list(event: Any, s: State) -> list[Any]:
        return [compute_item(event, s) for compute_item in items]

    return compute_list


def _compile_subscript(node: ast.Subscript) -> Expression:
    """Compile `X[KEY]`, such as `v['value']` or `s['seeds']`, into a function of event and state."""
    compute_table = compile_expression(node.value)
    compute_key = compile_expression(node.slice)

    def look_up(event: Any, s: State) -> Any:
        table = compute_table(event, s)
        return table[compute_key(event, s)]

    return look_up


def _compile_unary(node: ast.UnaryOp) -> Expression:
    """Compile `not X` or `-X` into a function of event and state.

    Args:
        node: The syntax tree of the expression.

    Raises:
        SyntaxError: It has another operator.
    """
    compute = compile_expression(node.operand)
    if isinstance(node.op, ast.Not):
        return lambda event, s: not compute(event, s)
    if isinstance(node.op, ast.USub):
        return lambda event, s: -compute(event, s)
    raise SyntaxError


def _compile_conditional(node: ast.IfExp) -> Expression:
    """Compile `X if TEST else Y` into a function of event and state."""
    is_met = compile_expression(node.test)
    compute_if_met = compile_expression(node.body)
    compute_if_not = compile_expression(node.orelse)

    def choose(event: Any, s: State) -> Any:
        if is_met(event, s):
            return compute_if_met(event, s)
        return compute_if_not(event, s)

    return choose


def _compile_and_or(node: ast.BoolOp) -> Expression:
    """Compile `X and Y` or `X or Y`, of two terms or more, into a function that gives True or False.

    Python would give the value of the term that decides, such as 3 for `0 or 3`. No rule needs this value. As in
    Python, the terms after the one that decides are not computed: they could raise.

    Args:
        node: The syntax tree of the expression.
    """
    terms = [compile_expression(value) for value in node.values]
    if isinstance(node.op, ast.And):
        return lambda event, s: all(term(event, s) for term in terms)
    return lambda event, s: any(term(event, s) for term in terms)


def _compile_comparison(node: ast.Compare) -> Expression:
    """Compile a comparison, which may be a chain such as `0 < v['value'] <= 1`, into a function of event and state.

    Args:
        node: The syntax tree of the comparison.

    Raises:
        SyntaxError: It has an operator that no rule of mlperf-logging has.
    """
    are_all_known = all(type(op) in _COMPARISONS for op in node.ops)
    if not are_all_known:
        raise SyntaxError
    operators = [_COMPARISONS[type(op)] for op in node.ops]
    first_operand = compile_expression(node.left)
    other_operands = [compile_expression(operand) for operand in node.comparators]
    if len(operators) > 1:
        comparisons = list(zip(operators, other_operands, strict=True))
        return _chain_of_comparisons(first_operand, comparisons)
    [compare] = operators  # one, as in nearly all comparisons: this is faster than a chain
    [second_operand] = other_operands
    return lambda event, s: compare(first_operand(event, s), second_operand(event, s))


def _chain_of_comparisons(
    first_operand: Expression, comparisons: Sequence[tuple[Callable[[Any, Any], Any], Expression]]
) -> Expression:
    """Return the function that computes a chain of comparisons such as `0 < v['value'] <= 1`.

    As in Python, operands after the first comparison that fails are not computed: they could raise.

    Args:
        first_operand: The compiled operand on the left, here `0`.
        comparisons: Pairs of an operator and the compiled operand after it, here (<=, 1) as the last one.
    """

    def chain(event: Any, s: State) -> bool:
        left = first_operand(event, s)
        for compare, right_operand in comparisons:
            right = right_operand(event, s)
            if not compare(left, right):
                return False
            left = right
        return True

    return chain


def _compile_arithmetic(node: ast.BinOp) -> Expression:
    """Compile an operation such as `v['value'] * 2` into a function of event and state.

    The compiled function raises TypeError for an operand that is not a number, because a text times a number may fill
    all memory.

    Args:
        node: The syntax tree of the operation.

    Raises:
        SyntaxError: It has an unknown operator, or is a power whose result may fill all memory.
    """
    operate = _ARITHMETIC.get(type(node.op))
    if operate is None or _is_power_of_any_size(node):
        raise SyntaxError
    left_operand = compile_expression(node.left)
    right_operand = compile_expression(node.right)

    def operation(event: Any, s: State) -> Any:
        left = left_operand(event, s)
        right = right_operand(event, s)
        are_numbers = _is_arithmetic_number(left) and _is_arithmetic_number(right)
        if not are_numbers:
            raise TypeError("no number")
        return operate(left, right)

    return operation


def _is_power_of_any_size(node: ast.BinOp) -> bool:
    """Return whether an operation is a power whose result may have any number of digits, as with two whole numbers.

    With a float for its exponent, such as `2.0`, a power has the size of a float.

    Args:
        node: The syntax tree of the operation.
    """
    is_power = isinstance(node.op, ast.Pow)
    is_exponent_a_float = isinstance(node.right, ast.Constant) and isinstance(node.right.value, float)
    return is_power and not is_exponent_a_float


def _is_arithmetic_number(value: Any) -> bool:
    return isinstance(value, int | float | complex)


def _compile_call(node: ast.Call) -> Expression:
    """Compile a call in a rule's expression into a function of event and state.

    The rules have four kinds of calls:

        isinstance(X, int)
        s.get(NAME)
        'TEXT {}'.format(X)
        max(X, Y), or another one of _FUNCTIONS

    Args:
        node: The syntax tree of the call.

    Raises:
        SyntaxError: It is any other call.
    """
    if node.keywords:
        raise SyntaxError
    match node.func, node.args:
        case ast.Name(id="isinstance"), [value, ast.Name(id="int")]:
            compute_value = compile_expression(value)
            return lambda event, s: isinstance(compute_value(event, s), int)
        case ast.Attribute(value=ast.Name(id="s"), attr="get"), [name]:
            compute_name = compile_expression(name)
            return lambda event, s: s.get(compute_name(event, s))
        case ast.Attribute(value=ast.Constant(value=str() as text), attr="format"), [value]:
            compute_value = compile_expression(value)
            return lambda event, s: text.format(compute_value(event, s))
        case _, [_, *_]:  # any other function, of one argument or more
            return _compile_call_of_function(node)
    raise SyntaxError


def _compile_call_of_function(node: ast.Call) -> Expression:
    """Compile a call of a function that rules may call, such as `max(X, Y)`, into a function of event and state.

    Args:
        node: The syntax tree of the call.

    Raises:
        SyntaxError: No rule of mlperf-logging calls such a function.
    """
    function = _FUNCTIONS.get(ast.unparse(node.func))  # by its name: "max" or "math.log2", for instance
    if function is None:
        raise SyntaxError
    compute_arguments = [compile_expression(argument) for argument in node.args]

    def call(event: Any, s: State) -> Any:
        arguments = [compute(event, s) for compute in compute_arguments]
        return function(*arguments)

    return call


# --- statements ---


def _compile_statement(node: ast.stmt) -> Statement:
    """Return the function that carries out a statement of a rule, such as `s['seeds'] += 1`.

    Args:
        node: The syntax tree of the statement: a call, an assignment, a change such as `+=`, or an `if`.

    Raises:
        SyntaxError: It is any other statement, or a form of these that no rule of mlperf-logging has.
    """
    match node:
        case ast.Expr(value=ast.Call() as call):
            return _compile_calling_statement(call)
        case ast.Assign(targets=[target]):
            return _assignment(_name_in_state(target), compile_expression(node.value))
        case ast.AugAssign():
            return _compile_change(node)
        case ast.If():
            return _compile_if(node)
    raise SyntaxError


def _compile_calling_statement(call: ast.Call) -> Statement:
    """Compile `enqueue_config(FILE)`, by which a further rule file is applied, or `s.update({NAME: VALUE, ...})`.

    Args:
        call: The syntax tree of the call.

    Raises:
        SyntaxError: It is any other call.
    """
    match call:
        case ast.Call(func=ast.Name(id="enqueue_config"), args=[file], keywords=[]):
            return _enqueueing(compile_expression(file))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="s"), attr="update"), args=[ast.Dict() as new], keywords=[]):
            return _compile_update(new)
    raise SyntaxError


def _enqueueing(compute_file: Expression) -> Statement:
    """Return the statement that enqueues a rule file, so that it is applied, too.

    Args:
        compute_file: The compiled expression that gives the name of the file.
    """

    def enqueue(event: Event, s: State) -> None:
        s.enqueued.append(Enqueued(compute_file(event, s), event))

    return enqueue


def _compile_update(new: ast.Dict) -> Statement:
    """Compile the update of the state by a table `{NAME: VALUE, ...}`.

    All values are computed before the first name is set.

    Args:
        new: The syntax tree of the table.

    Raises:
        SyntaxError: A name is not a constant text.
    """
    value_by_name: dict[str, Expression] = {}
    for key, value in zip(new.keys, new.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise SyntaxError
        value_by_name[key.value] = compile_expression(value)

    def update(event: Event | None, s: State) -> None:
        new_values = {name: compute_value(event, s) for name, compute_value in value_by_name.items()}
        s.update(new_values)

    return update


def _name_in_state(target: ast.expr) -> str:
    """Return the name in `s['name']`.

    Args:
        target: The syntax tree of the expression.

    Raises:
        SyntaxError: The expression has another form.
    """
    match target:
        case ast.Subscript(value=ast.Name(id="s"), slice=ast.Constant(value=str() as name)):
            return name
    raise SyntaxError


def _assignment(name: str, compute_value: Expression) -> Statement:
    """Return the statement that sets a name in the state to a computed value.

    Args:
        name: The name.
        compute_value: The compiled expression that gives the value.
    """

    def assign(event: Event | None, s: State) -> None:
        s[name] = compute_value(event, s)

    return assign


def _compile_change(node: ast.AugAssign) -> Statement:
    """Compile a change of a value in the state: `s['tensors'] += [X]`, or one by arithmetic such as `s['seeds'] += 1`.

    Args:
        node: The syntax tree of the change.

    Raises:
        SyntaxError: It has any other target or operation.
    """
    name = _name_in_state(node.target)
    adds_to_list = isinstance(node.op, ast.Add) and isinstance(node.value, ast.List)
    if adds_to_list:
        return _extension(name, compile_expression(node.value))
    changed_value = ast.BinOp(left=node.target, op=node.op, right=node.value)  # of `X += Y`, this is `X + Y`
    return _assignment(name, _compile_arithmetic(changed_value))


def _extension(name: str, compute_added: Expression) -> Statement:
    """Return the statement that adds the items of a computed list to the list that a name in the state has.

    Args:
        name: The name.
        compute_added: The compiled expression that gives the items to add.
    """

    def extend(event: Event | None, s: State) -> None:
        s[name].extend(compute_added(event, s))

    return extend


def _compile_if(node: ast.If) -> Statement:
    """Compile `if CONDITION: STATEMENTS` into a function of event and state.

    Args:
        node: The syntax tree of the statement.

    Raises:
        SyntaxError: It has an else.
    """
    if node.orelse:
        raise SyntaxError
    is_met = compile_expression(node.test)
    steps = [_compile_statement(step) for step in node.body]

    def run_if_met(event: Event | None, s: State) -> None:
        if is_met(event, s):
            for step in steps:
                step(event, s)

    return run_if_met
