"""What a knob of STRATEGY did is read off the program: it is said, and a knob without its effect is refused."""

from typing import Any

import paddle
import pytest

from program import count
from program.ops import Refused
from program.passes import buckets, edit
from tests.program import programs
from tests.program.programs import proved
from tests.program.test_verify import BY_LARS, FULL, HALF, UNITS, ops

UNFUSED = "fuse_bn_add_act_ops=0,fuse_elewise_add_act_ops=0"


def test_what_each_knob_changed_is_said() -> None:
    assert proved(programs.build(**HALF).main, "") == [
        "fuse_bn_act_ops made 9 fused_batch_norm_act",
        "fuse_bn_add_act_ops made 4 fused_bn_add_activation",
        "fuse_elewise_add_act_ops found nothing to change",
        "enable_addto made 4 gradient of a convolution that adds",
        "enable_inplace made 6 share_buffer",
        "merged_optimizer made 2 merged_momentum",
        "fuse_grad_size_in_MB=16: buckets 2",
    ]
    knobs = "perturb_input=1"
    said = proved(programs.build(**HALF, knobs=knobs).main, knobs)
    assert "perturb_input moved image by one rounding" in said
    main = programs.build(**FULL).main
    block = main.global_block()
    gradient = ops(block, "relu_grad")[0].output("X@GRAD")
    edit.insert(block, len(block.ops), "grad_add", {"X": gradient, "Y": gradient}, {"Out": gradient}, op_role=1)
    assert "enable_addto left 1 sums of gradients that no convolution makes" in proved(main, "", name="fp32")


@pytest.mark.parametrize(
    ("knobs", "asked", "of", "reason"),
    [
        ("fuse_bn_act_ops=0", "", HALF, "fuse_bn_act_ops is on and the program has 9 batch_norm before a relu: set "),
        ("fuse_bn_add_act_ops=0", "", HALF, "fuse_bn_add_act_ops is on and the program has 6 batch_norm before an add"),
        (
            UNFUSED,
            "fuse_bn_add_act_ops=0",
            HALF,
            "fuse_elewise_add_act_ops is on and the program has 4 elementwise_add",
        ),
        ("enable_addto=0", "", HALF, "enable_addto is on and the program has 4 sum of the gradient of a convolution's"),
        ("enable_inplace=0", "enable_inplace=1", HALF, "enable_inplace is on and the program has no share_buffer"),
        ("merged_optimizer=0", "", HALF, "merged_optimizer is on and the program has 47 momentum"),
        ("", "fuse_bn_act_ops=0", HALF, "fuse_bn_act_ops is off and the program has 9 fused_batch_norm_act"),
        ("", "fuse_bn_add_act_ops=0", HALF, "fuse_bn_add_act_ops is off and the program has 4 fused_bn_add_activation"),
        ("", "enable_addto=0", HALF, "enable_addto is off and the program has 4 gradient of a convolution that adds"),
        ("", "enable_inplace=0", HALF, "enable_inplace is off and the program has 6 share_buffer"),
        ("", "merged_optimizer=0", HALF, "merged_optimizer is off and the program has 2 merged_momentum"),
        ("", "merged_lars=1", HALF, "merged_lars is on and the program has no lars_momentum of several"),
        ("", "perturb_input=1", HALF, "perturb_input is on and no input is moved"),
        ("", "fuse_grad_size_in_MB=0.001", HALF, r"a bucket has .* MiB, fuse_grad_size_in_MB is 0\.001"),
        ("fuse_grad_size_in_MB=0.01", "", HALF, r"a bucket is closed at 0\.\d\d MiB, .* fuse_grad_size_in_MB is 16"),
        ("", "fuse_elewise_add_act_ops=0", FULL, "fuse_elewise_add_act_ops is off and the program has 4 fused"),
        ("fuse_elewise_add_act_ops=0", "", FULL, "fuse_elewise_add_act_ops is on and the program has 4 elementwise"),
        ("", "merged_lars=1", BY_LARS, "merged_lars is on and the program has 47 lars_momentum of one param"),
        ("merged_lars=1", "", BY_LARS, "merged_lars is off and the program has 2 lars_momentum of several"),
        ("", "resnet_unit=1", UNITS, "resnet_unit is on and the program has 14 convolution that a unit takes"),
        ("resnet_unit=1", "", UNITS, "resnet_unit is off and the program has 12 resnet_unit"),
    ],
)
def test_a_knob_without_its_effect_is_refused(knobs: str, asked: str, of: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=f"^STRATEGY: {reason}"):
        proved(programs.build(**of, knobs=knobs).main, asked, name=of["name"])


def test_a_flag_that_is_not_as_asked_is_refused() -> None:
    before = paddle.get_flags(["FLAGS_conv_workspace_size_limit", "FLAGS_cudnn_exhaustive_search"])
    knobs, full = "conv_workspace_size_limit=77,cudnn_exhaustive_search=1", programs.build(**FULL)
    try:
        paddle.set_flags({"FLAGS_conv_workspace_size_limit": 77, "FLAGS_cudnn_exhaustive_search": True})
        proved(full.main, knobs, name="fp32")
        paddle.set_flags({"FLAGS_cudnn_exhaustive_search": False})
        with pytest.raises(Refused, match=r"cudnn_exhaustive_search=1: Paddle has .*_search=False"):
            proved(full.main, knobs, name="fp32")
    finally:
        paddle.set_flags(before)


def test_the_first_bucket_is_closed_early_and_the_last_is_small() -> None:
    """A MiB closes the first one, though the next gradient would fit; one of 9 MiB travels alone."""
    built = programs.build(**HALF | {"name": "fp32", "stages": ((256, 1), (512, 1))}, knobs="fuse_grad_size_in_MB=8")
    sizes_mib = [round(bucket["mib"], 1) for bucket in count.buckets(built.main)]
    assert sizes_mib == [4.1, 0.0, 9.0, 2.0, 8.0, 3.3, 0.4]


def test_a_tail_of_exactly_its_limit_is_the_last_bucket() -> None:
    sizes = {"a": 2048 * 1024, "b": 512 * 1024, "c": 512 * 1024}
    assert buckets._pack(list(sizes), sizes, limit_mib=8.0) == [["a"], ["b", "c"]]
    assert buckets._pack(list(sizes), sizes | {"b": sizes["b"] + 1}, limit_mib=8.0) == [["a"], ["b"], ["c"]]
