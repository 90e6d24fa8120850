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
    """Return how to convert the tensors that a training program stores in another memory layout than the plain network.

    Checkpoints have all tensors in the layout of the plain network, so a save and a load convert these tensors. For
    example, the weights of the operator `resnet_unit` lie as [O, H, W, I] in the program, and as [O, I, H, W] in the
    plain network.

    Args:
        main: Training program.

    Returns:
        {name of a tensor: its conversions to and from the layout of the plain network}. It is empty if no tensor has
        another layout.
    """
    conversions_by_name: dict[str, StoredForm] = {}
    for each_pass in _PASSES:  # those that store tensors in a layout of their own, such as `resnet_unit`
        for name in each_pass.names(main):
            conversions_by_name[name] = each_pass.form
    return conversions_by_name
