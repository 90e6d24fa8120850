"""Paddle's own files are read; files that would run code are not."""

import os
import pickle
import subprocess

import numpy as np
import paddle
import pytest

from program.weights import read_pdparams


def test_a_file_of_paddle(tmp_path):
    """Written by paddle.save of a layer's state, as PaddleSeg publishes its weights, in both protocols."""
    path = tmp_path / "a.pdparams"
    with paddle.base.dygraph.guard(paddle.CPUPlace()):
        state = paddle.nn.Conv2D(3, 4, 3).state_dict()
        for protocol in (2, 4):
            paddle.save(state, str(path), protocol=protocol)
            arrays = read_pdparams(path)
            assert arrays.keys() == {"weight", "bias"}
            assert all(np.array_equal(value, state[name].numpy()) for name, value in arrays.items())
        paddle.save(state["weight"].numpy().tolist(), str(path))
    with pytest.raises(ValueError, match="a list"):
        read_pdparams(path)


class _Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, np.load, subprocess.Popen])
def test_code_is_not_run(tmp_path, function):
    mark, path = tmp_path / "mark", tmp_path / "a.pdparams"
    path.write_bytes(pickle.dumps({"weight": _Evil(function, f"touch {mark}")}))
    with pytest.raises(ValueError, match="which no array needs"):
        read_pdparams(path)
    assert not mark.exists()


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"\x00" * 100, b"PK\x03\x04", pickle.dumps({"a": [1, 2]})])
def test_no_weights(tmp_path, data):
    path = tmp_path / "a.pdparams"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.pdparams: "):
        read_pdparams(path)
    with pytest.raises(ValueError, match="no weights of Paddle"):
        read_pdparams(tmp_path / "absent")
