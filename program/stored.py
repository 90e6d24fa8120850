"""Tensors that a pass stores in another layout than the plain network: what `harness/state.py` asks of a program.

A checkpoint and weights from outside are in the plain layout, whatever the strategy was. A pass that stores otherwise
has a row in `_PASSES`.
"""

from collections.abc import Callable
from typing import NamedTuple

from paddle import static

from program.arrays import Array
from program.passes import resnet_unit


class Conversion(NamedTuple):
    """How a tensor's value is converted to the plain layout and back; both functions return a new array or a view."""

    to_plain: Callable[[Array], Array]
    from_plain: Callable[[Array], Array]


class _Pass(NamedTuple):
    """A pass that stores tensors in a layout of its own."""

    names: Callable[[static.Program], set[str]]  # of those tensors in a program
    conversion: Conversion


_PASSES = (
    _Pass(
        names=resnet_unit.names_in_unit_layout,
        conversion=Conversion(to_plain=resnet_unit.to_plain_layout, from_plain=resnet_unit.to_unit_layout),
    ),
)


def conversions(main: static.Program) -> dict[str, Conversion]:
    """Map each tensor that a program stores in another layout than a checkpoint to its conversion.

    For example, the weights of the operator `resnet_unit` are [O, H, W, I] in the program and [O, I, H, W] in a
    checkpoint. A save and a load convert them.

    Args:
        main: Training program.

    Returns:
        Conversions by the tensors' names; empty if no tensor has another layout.
    """
    conversions_by_name: dict[str, Conversion] = {}
    for each_pass in _PASSES:  # all passes that change the layout of tensors, such as `resnet_unit`
        names = each_pass.names(main)  # none if the pass was not applied
        conversions_by_name |= dict.fromkeys(names, each_pass.conversion)
    return conversions_by_name
