"""The expressions of mlperf-logging's rules in words, for messages."""

import ast
import re

# Expressions of mlperf-logging's rules, as ast.unparse writes them, and the words for them.
_WORDS = (
    (r"v\['value'\] != ''", "not empty"),
    (r"'value' in v", "a value"),
    (r"'(\w+)' in v\['metadata'\]", r"metadata has \1"),
    (r"v\['metadata'\]\['(\w+)'\] > (\S+)", r"metadata has \1 above \2"),
    (r"v\['metadata'\]\['(\w+)'\] >= (\S+)", r"metadata has \1 of \2 at least"),
    (r"v\['value'\] in \[(.+)\]", r"one of \1"),
    (r"is_integer\(v\['value'\]\)", "a whole number"),
    (r"is_integer\(v\['value'\] / ([\d.e-]+)\)", r"a multiple of \1"),
    (r"is_integer\(math\.log2\(v\['value'\] / ([\d.e-]+)\)\)", r"\1 times a power of two"),
    (r"ll\.timestamp - s\['first_init_start'\] < .+", "soon enough after the first init_start"),
    (r"v\['value'\] == (.+)", r"equal to \1"),
    (r"v\['value'\] > (\S+)", r"above \1"),
    (r"v\['value'\] >= (\S+)", r"at least \1"),
    (r"v\['value'\] < (\S+)", r"below \1"),
    (r"v\['value'\] <= (\S+)", r"at most \1"),
)

_OF_METADATA = "metadata has "  # begins the words of a check that asks for metadata


def in_words(node: ast.expr) -> str:
    """Return in words what an expression of a rule file wants.

    v['value'] >= 1 and v['value'] <= 9
    -> at least 1 and at most 9

    ('step_num' in v['metadata']) | ('epoch_num' in v['metadata'])
    -> metadata has step_num or epoch_num

    v['value'] > 0 if s['x'] else True
    -> above 0, where x

    Args:
        node: The syntax tree of the expression, in which `v` is the event and `s` the state.
    """
    match node:
        case ast.BoolOp(op=ast.And(), values=checks):
            return " and ".join(in_words(check) for check in checks)
        case ast.BoolOp(op=ast.Or(), values=checks):
            return " or ".join(in_words(check) for check in checks)
        case ast.BinOp(op=ast.BitOr(), left=ast.Compare() as first, right=ast.Compare() as second):  # first | second
            return _either_in_words(first, second)
        case ast.IfExp(body=check, test=condition, orelse=ast.Constant(value=True)):  # check if condition else True
            return f"{in_words(check)}, where {in_words(condition)}"
        case single_check:  # it is not joined from others
            return _words_for_text(ast.unparse(single_check))


def _either_in_words(first: ast.expr, second: ast.expr) -> str:
    """Return the words of two checks, joined by "or". If both begin with "metadata has", this is said only once.

    Args:
        first: The syntax tree of the one check.
        second: The syntax tree of the other check.
    """
    words_of_first = in_words(first)
    words_of_second = in_words(second)
    if words_of_first.startswith(_OF_METADATA):
        words_of_second = words_of_second.removeprefix(_OF_METADATA)
    return f"{words_of_first} or {words_of_second}"


def _words_for_text(expression_text: str) -> str:
    """Return what a single check asks for in plain words, such as "at least 0.8" for `v['value'] >= 0.8`.

    Args:
        expression_text: The text of the check, as ast.unparse writes it. `v` is the event and `s` the state.
    """
    for pattern, words in _WORDS:  # such as r"v\['value'\] in \[(.+)\]" and r"one of \1"
        match = re.fullmatch(pattern, expression_text)
        if match:
            # `expand` puts what (.+) matched in place of \1: one of 'sgd', 'lars'. Then the quotes are removed.
            return match.expand(words).replace("'", "")
    return _with_plain_names(expression_text)


def _with_plain_names(expression_text: str) -> str:
    """Return an expression with names in place of look-ups: `s['seeds'] < 9` becomes `seeds < 9`.

    Args:
        expression_text: The text of the expression, in which `v` is the event and `s` the state.
    """
    text = re.sub(r"\b[sv]\['(\w+)'\]", r"\1", expression_text)  # v['metadata']['file'] -> metadata['file']
    return re.sub(r"\['(\w+)'\]", r"'s \1", text)  # metadata['file'] -> metadata's file
