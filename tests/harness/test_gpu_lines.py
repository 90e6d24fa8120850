"""What only a GPU runs, with a CPU or a recorded machine in its place; tests/null_gpu/README.md lists the functions."""

import ctypes
import os
import pkgutil
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pynvml
import pytest
from nvidia.dali import Pipeline, types
from nvidia.dali.backend import TensorGPU, TensorListGPU

import harness.__main__
from harness import loader, loop, nvidia, nvidia_smi, provenance
from harness.job import job_of
from harness.ranks import Ranks
from paddle_hrnet import data as hrnet
from paddle_rn50 import data as rn50
from paddle_rn50.config import Augmentation
from paddle_rn50.folder import ImageList
from runlog import schema
from tests import jobs
from tests.harness.recorded import A100, A100_TOPOLOGY, H100, V100, recorded_nvml
from tools.acceptance.machine import Machine

STREAM = 12345
NAME = r"(?:harness|program|paddle_rn50|paddle_hrnet|tools|compliance)\.[\w.]+"


def test_what_the_list_names_is_there() -> None:
    page = (jobs.REPOSITORY / "tests" / "null_gpu" / "README.md").read_text()
    listed = page.split("| line | what a GPU alone does there")[1].split("\n\n")[0].splitlines()[2:]
    assert len(listed) > 20
    for row in listed:
        names = re.findall(f"`({NAME})`", row.split(" | ")[0])
        assert names, row
        assert all(pkgutil.resolve_name(name) for name in names)


def on_gpu(values: np.ndarray) -> Any:
    """A batch as DALI's GPU pipeline gives it: its class' own attributes and no others, values on the CPU."""

    def copy(pointer: Any, cuda_stream: Any, *, non_blocking: bool) -> None:
        assert (cuda_stream.value, non_blocking) == (STREAM, True)
        ctypes.memmove(pointer, values.ctypes.data, values.nbytes)

    dense = mock.create_autospec(TensorGPU, instance=True)
    dense.shape.return_value = list(values.shape)
    dense.dtype = {np.float32: types.FLOAT, np.float16: types.FLOAT16}[values.dtype.type]
    dense.copy_to_external.side_effect = copy
    batch = mock.create_autospec(TensorListGPU, instance=True)
    batch.as_tensor.return_value = dense
    return batch


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_gpu_batch_is_copied_into_a_paddle_tensor_on_paddles_stream(kind: type) -> None:
    images: np.ndarray = np.random.default_rng(0).standard_normal((2, 4, 5, 3)).astype(kind)
    stream = mock.create_autospec(paddle.device.cuda.Stream, instance=True, cuda_stream=STREAM)
    with (
        mock.patch.object(paddle, "CUDAPlace", side_effect=lambda device: paddle.CPUPlace()) as place,
        mock.patch.object(paddle.device.cuda, "current_stream", autospec=True, return_value=stream) as current,
    ):
        tensor = loader.to_feed(on_gpu(images), 3)
    assert np.array_equal(np.array(tensor), images)
    assert np.array(tensor).dtype == kind
    place.assert_called_once_with(3)
    current.assert_called_once_with(3)


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("workload", ["rn50", "hrnet"])
def test_images_are_decoded_on_the_gpu_and_stay_there(workload: str, augment: bool) -> None:
    options: dict[str, Any] = {"device": "gpu", "batch_size": 8, "num_threads": 2, "device_id": 0}
    if workload == "rn50":
        options["image"] = rn50.ImageFormat(size=224, layout="NHWC", channels=4, half=True)
        options |= {"augment": Augmentation() if augment else None, "resize": 256, "largest": (500, 400)}
        pipeline = rn50._pipeline(source=lambda: None, **options)
    else:
        options["image"] = hrnet.ImageFormat(height=512, width=1024, half=True)
        pipeline = hrnet._pipeline(source=lambda: None, augmented=augment, renumbered=True, **options)
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
    # What a step is fed lies on the GPU; the host reads the labels' highest number alone, which never was there.
    on_host = [output.device for output in pipeline._graph_outputs].count("cpu")
    assert (on_host, len(pipeline._graph_outputs)) == ((0, 3 - augment) if workload == "rn50" else (1, 4 - augment))


@pytest.mark.parametrize(("job_device", "gpu"), [("gpu", 3), ("cpu", None)])
def test_every_pipeline_of_a_job_on_gpus_names_the_ranks_gpu_to_dali(job_device: str, gpu: int | None) -> None:
    """On an H200 DALI 1.34 aborted a process at the end of a pipeline that named none after one that named a GPU."""
    machine = mock.create_autospec(Machine, instance=True)
    machine.job, machine.me = job_of(device=job_device), mock.create_autospec(Ranks, instance=True, local_rank=3)
    reader = Machine.reader(machine, rn50.ImageFormat(size=64), device="cpu")
    images = ImageList(root=Path("/no/data"), part="val", paths=(), labels=np.zeros(0, np.int64))
    with mock.patch.object(Pipeline, "build", autospec=True) as build:
        rn50.Loader(images, iter(()), reader, resize=64)
    (pipeline,) = build.call_args.args
    assert (reader.device, pipeline.device_id) == ("cpu", gpu)


def test_memory_is_that_of_the_ranks_own_gpu() -> None:
    assert loop.gpu_memory_mib(paddle.CPUPlace()) is None
    place = mock.create_autospec(paddle.CUDAPlace, instance=True)
    place.get_device_id.return_value = 3
    peaks = {3: 3 * 2**20}
    with mock.patch.object(paddle.device.cuda, "max_memory_reserved", autospec=True, side_effect=peaks.__getitem__):
        assert loop.gpu_memory_mib(place) == 3.0


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (None, [0, 1, 2]),
        ("2,1", [2, 1]),  # in the order of the list
        (" 0, 2", [0, 2]),
        ("", []),
        ("NoDevFiles", []),  # SLURM's, of a job that asked for none
        ("0,2,-1,1", [0, 2]),  # the example of CUDA's manual
        ("0,3,1", [0]),
        ("0,0", []),
        ("GPU-8d2f0002-0000,0", [2, 0]),
        ("GPU-8d2f0000,GPU-8d2f0002,1", [0, 2, 1]),
        ("2,GPU-8d2f,0", [2]),  # all GPUs begin so
        ("1,MIG-GPU-8d2f0002/1/0", [1]),
    ],
)
def test_the_gpus_are_those_that_cuda_shows_as_it_reads_its_list(
    text: str | None, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    with recorded_nvml(A100, A100, A100), nvidia.opened() as (handles, said):
        assert [nvidia.gpu_of(handle).index for handle in handles] == numbers
    some = f"CUDA_VISIBLE_DEVICES={text} names {len(numbers)} of 3 whole GPUs"
    assert said == ("" if len(numbers) == 3 else some)


FUSED = {"precision": "amp_o2", "strategy": "resnet_unit=1"}
NO_KERNEL = "STRATEGY: resnet_unit=1: .* has compute capability {}, its kernel takes 8.0 to 8.9: leave it out"


@pytest.mark.parametrize(
    ("settings", "gpu", "said"),
    [
        ({"precision": "tf32"}, V100, "PRECISION=tf32: Tesla V100-SXM2-16GB of .* does not have it: set fp32"),
        (FUSED, V100, NO_KERNEL.format("7.0")),
        (FUSED, H100, NO_KERNEL.format("9.0")),
    ],
)
def test_a_gpu_without_what_the_job_computes_by_is_refused(
    settings: dict[str, str], gpu: dict[str, Any], said: str
) -> None:
    job = job_of(device="gpu", dgxngpu=2, **settings)  # type: ignore[arg-type]
    with recorded_nvml(A100, A100):
        harness.__main__._usable_gpus(job, checks_precision=True)
    with recorded_nvml(gpu, gpu):
        harness.__main__._usable_gpus(job_of(device="gpu", precision="amp_o2", dgxngpu=2), checks_precision=True)
        harness.__main__._usable_gpus(job, checks_precision=False)
        with pytest.raises(ValueError, match=said):
            harness.__main__._usable_gpus(job, checks_precision=True)


@pytest.mark.parametrize(
    ("driver", "used", "used_or_reserved"), [("495.44", 3 * 2**20, None), ("510.47.03", None, 5 * 2**20)]
)
def test_an_old_pynvml_does_not_tell_a_new_drivers_reserve_apart(
    driver: str, used: int | None, used_or_reserved: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pynvml, "nvmlMemory_v2")
    gpu = A100 | {"driver": driver, "memory": (40 * 2**30, 3 * 2**20), "reserve": 2 * 2**20}
    with recorded_nvml(gpu), nvidia.opened() as (handles, _):
        memory = nvidia.memory_of(handles[0])
    assert memory == nvidia.Memory(total=40 * 2**30, used=used, used_or_reserved=used_or_reserved)


def test_a_logs_header_describes_the_gpus() -> None:
    with recorded_nvml(absent=True):
        assert provenance.node().gpus == []
    with recorded_nvml(A100, A100):
        gpus = provenance.node().gpus
    assert gpus == [schema.Gpu(name=A100["name"], memory_gib=40.0, driver=A100["driver"])] * 2


def test_a_nodes_cores_are_those_of_all_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a DGX A100 gave a node the cores of its last rank's NUMA node: a quarter of those that it used."""
    node_of_each, cores_of_each = [], []
    for host, cores in (("a", {0, 1}), ("a", {2, 3}), ("a", {2, 3}), ("b", {0, 1})):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        node_of_each.append(provenance.node()._replace(host=host))
        cores_of_each.append(provenance.own_cores())
    nodes = provenance.nodes_of_ranks(node_of_each, cores_of_each)
    assert [(node.host, node.cores) for node in nodes] == [("a", 4), ("b", 2)]


def test_the_topology_is_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    (tmp_path / "matrix").write_text(A100_TOPOLOGY)
    program.write_text(f'#!/bin/sh\n[ "$*" = "topo -m" ] && cat {tmp_path}/matrix\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert nvidia_smi.topology() == nvidia_smi.parse_topology(A100_TOPOLOGY)
    seen = provenance.node().topology
    assert seen is not None and seen.devices[0] == "GPU0"
    (tmp_path / "matrix").write_text(A100_TOPOLOGY.replace("\nGPU7\t", "\nGPU9\t"))
    with pytest.raises(ValueError, match="GPU7 has a column and no whole row"):
        nvidia_smi.topology()
    (tmp_path / "matrix").write_text("\x1b[4m\tCPU Affinity\tNUMA Affinity\x1b[0m\n")
    with pytest.raises(ValueError, match="no matrix of nvidia-smi topo -m: no device has a column"):
        nvidia_smi.topology()
    assert provenance.node().topology is None
