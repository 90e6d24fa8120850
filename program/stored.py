"""Tensors that a pass stores in another form than the plain network has: what `harness/state.py` asks of a program.

A checkpoint and weights from outside are in the plain form, whatever the strategy was. A pass that stores otherwise has
a row in `_PASSES`.
"""

from collections.abc import Callable
from typing import NamedTuple

from paddle import static

from program.arrays import Array
from program.passes import resnet_unit


class StoredForm(NamedTuple):
    """Conversions of one tensor's value; both return a new array or a view."""

    to_plain: Callable[[Array], Array]
    from_plain: Callable[[Array], Array]


class _Pass(NamedTuple):
    """A pass that stores tensors in a form of its own."""

    names: Callable[[static.Program], set[str]]  # of those tensors in a program
    form: StoredForm


_PASSES = (
    _Pass(
        names=resnet_unit.names_in_unit_layout,
        form=StoredForm(to_plain=resnet_unit.to_plain_layout, from_plain=resnet_unit.to_unit_layout),
    ),
)


def forms(main: static.Program) -> dict[str, StoredForm]:
    """Return the tensors that a training program does not store as the plain network does, with their conversions.

    The weights of a `resnet_unit`, for one, lie as [O, H, W, I] there, and as [O, I, H, W] in the plain network.
    Checkpoints are in the plain form, whatever passes the program was built with.

    Args:
        main: Training program.

    Returns:
        The conversions to and from the plain form, by name; empty if all tensors are stored plainly.
    """
    by_name: dict[str, StoredForm] = {}
    for stored_by in _PASSES:  # the passes that store tensors in a form of their own
        for name in stored_by.names(main):
            by_name[name] = stored_by.form
    return by_name
