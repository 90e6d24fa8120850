"""A training that differs from another by roundings alone: the control of a search for a strategy."""

from __future__ import annotations

import paddle
from paddle import static

from program.passes.edit import Step, insert_all

ROUNDING = {paddle.float32: 2.0**-23, paddle.float16: 2.0**-10}  # of 1.0


def perturb_input(main: static.Program) -> None:
    """Moves each value x of the floating-point inputs by about one rounding of its type.

    By x sin(1000 x) rounding, so that the direction differs from value to value: a common factor would be taken out
    again by the first batch norm.
    """
    block = main.global_block()
    for variable in [v for v in block.vars.values() if v.is_data and v.dtype in ROUNDING]:
        x = variable.name
        angle, part, moved = (
            block.create_var(name=f"{x}.{name}", shape=variable.shape, dtype=variable.dtype).name
            for name in ("angle", "part", "moved")
        )
        for op in block.ops:
            op.desc._rename_input(x, moved)
        steps: list[Step] = [
            ("scale", {"X": [x]}, {"Out": [angle]}, {"scale": 1000.0}),
            ("sin", {"X": [angle]}, {"Out": [angle]}, {}),
            ("elementwise_mul", {"X": [x], "Y": [angle]}, {"Out": [part]}, {"axis": -1}),
            ("scale", {"X": [part]}, {"Out": [part]}, {"scale": ROUNDING[variable.dtype]}),
            ("elementwise_add", {"X": [x], "Y": [part]}, {"Out": [moved]}, {"axis": -1}),
        ]
        insert_all(block, 0, steps, op_role=0)
    block._sync_with_cpp()
