"""Batch normalization over all ranks: what GPUs are given, and its equivalent on two CPU ranks."""

from collections import Counter
from pathlib import Path

import paddle
import pytest
from paddle import static

from harness import sync_bn
from tests import jobs


@pytest.mark.xdist_group("ranks")
def test_two_ranks_train_as_the_joined_batch() -> None:
    """Parameters and running statistics, so the backward pass too, after three steps."""
    done = jobs.on_ranks(2, str(Path(__file__).with_name("two_ranks_bn.py")), THREADS=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 agrees", "rank 1 agrees"]


def test_the_operators_are_in_the_program() -> None:
    paddle.enable_static()
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [2, 3, 8, 8], "float32")
        for training in (True, True, False):
            x = static.nn.batch_norm(static.nn.conv2d(x, 4, 3), is_test=not training)
        sync_bn.span_ranks(main)
        static.append_backward(paddle.mean(x))
    kinds = Counter(op.type for op in main.global_block().ops)
    assert (kinds["sync_batch_norm"], kinds["sync_batch_norm_grad"], kinds["batch_norm"]) == (2, 2, 1)
    sync_bn.on_cpu(main, 2)
    kinds = Counter(op.type for op in main.global_block().ops)
    assert kinds["sync_batch_norm"] == kinds["sync_batch_norm_grad"] == 0
    assert kinds["c_allreduce_sum"] == 4
