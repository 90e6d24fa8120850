"""What only a GPU runs, with a CPU or a recorded machine in its place: docs/program.md lists these functions."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from nvidia.dali.backend import TensorListCPU
from nvidia.dali.plugin import paddle as plugin
from paddle import profiler

from harness import doctor, loader, loop, nvidia, provenance, tracing
from paddle_hrnet import data as hrnet
from paddle_rn50 import data as rn50
from paddle_rn50.config import Augmentation
from tests.harness.recorded import A100, A100_TOPOLOGY, Nvml

STREAM = 12345


class Dense:
    """A batch as DALI's GPU pipeline gives it, on the CPU."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def device_id(self) -> int:
        return 3


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_gpu_batch_is_copied_into_a_paddle_tensor_on_paddles_stream(kind: type) -> None:
    images = np.random.default_rng(0).standard_normal((2, 4, 5, 3)).astype(kind)
    batch = SimpleNamespace(as_tensor=lambda: Dense(TensorListCPU(images, "HWC").as_tensor()))
    with (
        mock.patch.object(paddle, "CUDAPlace", side_effect=lambda device: paddle.CPUPlace()) as place,
        mock.patch.object(
            paddle.device.cuda, "current_stream", side_effect=lambda device: SimpleNamespace(cuda_stream=STREAM)
        ) as stream,
        mock.patch.object(plugin, "feed_ndarray", wraps=plugin.feed_ndarray) as feed,
    ):
        tensor = loader.to_feed(batch, "gpu")
    assert np.array_equal(np.array(tensor), images)
    assert np.array(tensor).dtype == kind
    place.assert_called_once_with(3)
    stream.assert_called_once_with(3)
    assert feed.call_args.args[2] == STREAM


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("workload", ["rn50", "hrnet"])
def test_images_are_decoded_on_the_gpu_and_stay_there(workload: str, augment: bool) -> None:
    options: dict[str, Any] = {
        "source": lambda: None,
        "device": "gpu",
        "batch_size": 8,
        "num_threads": 2,
        "device_id": 0,
    }
    if workload == "rn50":
        image = rn50.ImageFormat(size=224, layout="NHWC", channels=4, half=True)
        pipeline = rn50._pipeline(image=image, augment=Augmentation() if augment else None, resize=256, **options)
    else:
        crop = hrnet.ImageFormat(height=512, width=1024, half=True)
        pipeline = hrnet._pipeline(crop=crop, augmented=augment, **options)
    pipeline._build_graph()  # DALI checks each operator's name, arguments and devices; to run it takes a GPU
    chain = []  # the images' way, from the output back: (operator, where what it reads lies, where what it makes)
    images = pipeline._graph_outputs[0]
    while images.source.inputs:
        read = images.source.inputs[0]
        chain.append((images.source.name.strip("_").rpartition("_")[0], read.device, images.device))
        images = read
    decoder = "ImageSlice" if (workload, augment) == ("rn50", True) else "Image"
    assert chain.pop() == (decoder, "cpu", "gpu")  # encoded, no larger than the file
    assert chain[0][0] == "CropMirrorNormalize"
    assert {(read, made) for _, read, made in chain} == {("gpu", "gpu")}, "no image comes back to the host"


def test_memory_is_that_of_the_ranks_own_gpu() -> None:
    assert loop.gpu_memory_mib(paddle.CPUPlace()) is None
    place = SimpleNamespace(get_device_id=lambda: 3)
    with mock.patch.object(paddle.device.cuda, "max_memory_reserved", side_effect={3: 3 * 2**20}.__getitem__):
        assert loop.gpu_memory_mib(place) == 3.0
    assert hasattr(paddle.CUDAPlace, "get_device_id")


def test_kernels_are_traced_beside_the_steps(tmp_path: Path) -> None:
    target = profiler.ProfilerTarget
    tracer = tracing.Tracer(2, 3, tmp_path / "result_0.txt", on_gpu=True)
    with mock.patch.object(profiler, "Profiler", autospec=True) as made:  # without a driver it does not start
        for step in range(1, 5):
            tracer.begin(step)
            assert made.return_value.start.called == (step >= 2)
            tracer.end(step, 0.0, 0.0)
            assert made.return_value.stop.called == (step >= 3)
    assert made.call_args.kwargs["targets"] == [target.CPU, target.GPU]
    made.call_args.kwargs["on_trace_ready"](made.return_value)
    made.return_value.export.assert_called_once_with(str(tmp_path / "result_0.kernels.trace.json"), "json")
    assert len(json.loads((tmp_path / "result_0.trace.json").read_text())["traceEvents"]) == 4


def test_a_logs_header_describes_the_gpus() -> None:
    assert provenance._gpus(Nvml(absent=True)) == []
    gpus = provenance._gpus(Nvml(A100, A100))
    assert gpus == [{"name": A100["name"], "memory_gib": 40.0, "driver": A100["driver"]}] * 2


def test_the_topology_is_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    (tmp_path / "matrix").write_text(A100_TOPOLOGY)
    program.write_text(f'#!/bin/sh\n[ "$*" = "topo -m" ] && cat {tmp_path}/matrix\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert nvidia.topology() == nvidia.parse_topology(A100_TOPOLOGY)
    assert provenance.node()["topology"]["devices"][0] == "GPU0"
    (tmp_path / "matrix").write_text(A100_TOPOLOGY.replace("\nGPU7\t", "\nGPU9\t"))
    with pytest.raises(ValueError, match="GPU7 has a column and no row"):
        nvidia.topology()
    assert provenance.node()["topology"] is None


def test_each_cuda_library_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def nccl(version: Any) -> None:
        version._obj.value = 22105

    def library(name: str) -> Any:
        if name.startswith("libcufft"):
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(ncclGetVersion=nccl, cudnnGetVersion=mock.Mock(return_value=8600))

    monkeypatch.setattr(ctypes, "CDLL", library)
    answers = doctor._libraries()
    assert set(answers) == set(doctor.CUDA_LIBRARIES)
    assert (answers["libnccl.so.2"], answers["libcudnn.so.8"], answers["libcudart.so.11.0"]) == (
        "22105",
        "8600",
        "loads",
    )
    assert answers["libcufft.so.10"] == "error: libcufft.so.10: cannot open shared object file"
