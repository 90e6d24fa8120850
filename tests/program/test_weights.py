"""Paddle's own files are read; files that would run code are not."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from program.weights import read_pdparams


def test_a_file_of_paddle(tmp_path):
    """Written by paddle.save of a layer's state, as PaddleSeg publishes its weights, in both protocols."""
    script = f"""
import paddle
paddle.seed(3)
layer = paddle.nn.Conv2D(3, 4, 3)
for protocol in (2, 4):
    paddle.save(layer.state_dict(), "{tmp_path}/%d.pdparams" % protocol, protocol=protocol)
paddle.save(layer.weight.numpy().tolist(), "{tmp_path}/list.pdparams")
import numpy as np
np.savez("{tmp_path}/truth.npz", weight=layer.weight.numpy(), bias=layer.bias.numpy())
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    truth = np.load(tmp_path / "truth.npz", allow_pickle=False)
    for protocol in (2, 4):
        arrays = read_pdparams(tmp_path / f"{protocol}.pdparams")
        assert set(arrays) == {"weight", "bias"}
        assert all(np.array_equal(arrays[name], truth[name]) for name in arrays)
    with pytest.raises(ValueError, match="a list"):
        read_pdparams(tmp_path / "list.pdparams")


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
