"""Out of memory ends in one line; on a CPU by a real limit, on a GPU by the texts of the installed Paddle."""

import json
import mmap
import re
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import nvidia.dali.backend as dali_backend
import paddle
import pytest
from nvidia.dali import Pipeline

from harness import env, loader, memory, nvidia
from harness.hooks.watchdog import WATCHDOG
from harness.job import job_of
from harness.traits import traits_of
from paddle_rn50 import data
from paddle_rn50.folder import ImageList
from runlog.errors import RunError
from tests import jobs
from tools.doctor.gpu_checks import judge_memory

LIMIT_KIB = 8_000_000  # of addresses: Paddle alone takes about half


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_a_batch_that_does_not_fit_ends_the_run_in_one_line(tmp_path: Path) -> None:
    settings = {**jobs.TINY, "IMAGE_SIZE": "64", "BATCHSIZE": "6000", "DATA": "synthetic", "DGXNGPU": "1"}
    settings["RECIPE"] = "nvidia_cosine"  # which takes any batch; the first layers already are too large
    limited = ["bash", "-c", f"ulimit -v {LIMIT_KIB} && exec ./run_and_time.sh"]
    done = jobs.run(limited, LOGDIR=str(tmp_path), **settings)
    assert done.returncode == 1, done.stderr[-2000:]
    log = tmp_path / "CPU" / "rn50" / "result_0.txt"
    (reason,) = jobs.values(log, "abort_reason")
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        f"error: {reason} (log {log}, messages {log.with_suffix('.stderr')})"
    ]
    said = re.fullmatch(
        r"out of memory at BATCHSIZE=6000 while warming up the training program: (\S+) has [\d.]+ of [\d.]+ GiB left, "
        r"this rank holds ([\d.]+) GiB \(([\d.]+) of ([\d.]+) GiB of addresses\) and asked for ([\d.]+) GiB more: "
        r"lower BATCHSIZE, or .*STRATEGY=gradient_merge=N.*",
        reason,
    )
    assert said and said[1] == socket.gethostname(), reason
    held, addresses, limit, asked = (float(text) for text in said.groups()[1:])
    assert held < addresses <= limit == pytest.approx(LIMIT_KIB / 2**20, abs=0.01)
    assert addresses + asked > limit - 0.02
    assert jobs.mllog(log)[-1]["metadata"]["status"] == "aborted"


def paddles_text() -> str:
    """The format of the GPU allocator's error, as the installed Paddle holds it."""
    library = Path(paddle.base.__file__).with_name("libpaddle.so")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(b"\n\nOut of memory error on GPU %d. Cannot allocate %s memory on GPU %d, %s memory")
        assert at > 0, "this Paddle words it otherwise"
        return content[at : content.find(b"\0", at)].decode()


@pytest.fixture(autouse=True)
def nothing_was_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog, of which this process has one, keeps what a test before this one was doing."""
    monkeypatch.setattr(WATCHDOG, "doing", "starting")


def test_a_gpu_that_is_full_is_named_with_what_it_holds() -> None:
    values = iter((3, "1.531250GB", 3, "30.911438GB", "416.625000MB", 3, ""))
    text = re.sub("%[ds]", lambda _: str(next(values)), paddles_text())
    where = "/paddle/paddle/fluid/memory/allocation/cuda_allocator.cc:86"
    recorded = f"In user code:\n\n    ResourceExhaustedError: {text} (at {where})"
    with pytest.raises(RunError) as error, memory.explain_exhaustion(512):
        raise MemoryError(recorded)
    assert str(error.value) == (
        f"out of memory at BATCHSIZE=512 while starting: GPU 3 of {socket.gethostname()} has 416.625000MB left, this "
        "rank holds 30.911438GB and asked for 1.531250GB more: lower BATCHSIZE, or compute the update in parts: "
        "STRATEGY=gradient_merge=N, N a divisor of BATCHSIZE"
    )


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("device 3", "the input pipeline asked for 1.500 GiB more on GPU 3 of "),
        ("host", " and asked for 1.500 GiB more"),
    ],
)
def test_an_input_pipeline_without_memory_is_told_as_the_program_is(where: str, said: str) -> None:
    dali = (
        f"Error in thread 2: [/opt/dali/dali/core/mm/malloc_resource.h:60] Can't allocate 1610612736 bytes on {where}."
    )
    source = mock.create_autospec(loader.Loader, instance=True)
    source._pipeline = mock.create_autospec(Pipeline, instance=True)
    source._pipeline.run.side_effect = RuntimeError(dali)
    with (
        pytest.raises(RunError, match="out of memory at BATCHSIZE=512 ") as error,
        memory.explain_exhaustion(512),
    ):
        loader.Loader._next_batch(source)
    assert said in str(error.value) and "lower BATCHSIZE" in str(error.value)
    library = Path(dali_backend.__file__).with_name("libdali_core.so").read_bytes()
    assert b"Can't allocate %zu bytes on device %d." in library, "this DALI words it otherwise"


# What DALI 1.34 said on an H200 with 600 MiB left: of buffers of 6 x 5980 x 6430 bytes, of hints for such an image, and
# of a process that had no memory for the decoder at all.
AT_START = (
    "Critical error when building pipeline:\nError when constructing operator: decoders__Image encountered:\n{}\n"
    "Current pipeline object is no longer valid."
)
NVJPEG_6 = "nvJPEG error (6): Error during the execution of the device tasks."


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "CUDA allocation failed",
            r"^out of memory at BATCHSIZE=512 .*decoder \(CUDA allocation failed\): lower BATCHSIZE",
        ),
        (NVJPEG_6, r"^out of memory at BATCHSIZE=512 .*decoder \(nvJPEG error \(6\)\): lower BATCHSIZE"),
        (
            "nvJPEG error (7): Internal error.",
            r"^the input pipeline cannot be built: .*nvJPEG error \(7\): Internal error",
        ),
    ],
)
def test_a_pipeline_that_cannot_be_built_is_told_in_one_line(reason: str, told: str) -> None:
    image = data.ImageFormat(size=224)
    reader = loader.ReaderConfig(batch=512, image=image, device="gpu", device_id=0, threads=4, seed=1)
    images = ImageList(root=Path("/no/data"), part="val", paths=(), labels=np.zeros(0, np.int64))
    building = mock.patch.object(Pipeline, "build", autospec=True, side_effect=RuntimeError(AT_START.format(reason)))
    with building, pytest.raises(RunError, match=told) as error, memory.explain_exhaustion(512):
        data.Loader(images, iter(()), reader, resize=256)
    assert "\n" not in str(error.value)


CUDA = "(External) CUDA error(2), out of memory. \n  [Hint: 'cudaErrorMemoryAllocation'.] (at gpu_context.cc:359)"
UNNAMED = r"{} in a library while starting, which names no amount; \S+ has [\d.]+ of [\d.]+ GiB left, .*GiB$"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(CUDA), r"too little left for a library \(CUDA error\(2\), out of memory\): lower IMAGE_SIZE"),
        (MemoryError("Unable to allocate 45.1 GiB for an array"), r"this rank holds [\d.]+ GiB"),  # as NumPy words it
        # Memory is not blamed where the error does not name it.
        (MemoryError("std::bad_alloc"), f"^{UNNAMED.format('std::bad_alloc')}"),
        (MemoryError("std::bad_array_new_length"), f"^{UNNAMED.format('std::bad_array_new_length')}"),
    ],
)
def test_a_library_without_memory_is_told(error: Exception, told: str) -> None:
    with pytest.raises(RunError, match=told), memory.explain_exhaustion(1):
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(OSError, match="CUDNN_STATUS_EXECUTION_FAILED"), memory.explain_exhaustion(16):
        raise OSError("(External) CUDNN error(8), CUDNN_STATUS_EXECUTION_FAILED.")


NULL_GPU = str(jobs.REPOSITORY / "tests" / "null_gpu" / "run.sh")


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize(
    ("workload", "precision", "batch", "card_mib", "workspace"),
    [
        ("rn50", "fp32", 64, 16384, "1000"),
        ("rn50", "fp32", 128, 16384, "1000"),
        ("rn50", "amp_o1", 160, 16384, "1000"),
        ("rn50", "amp_o2", 256, 40960, "4000"),
        ("hrnet", "amp_o2", 8, 32768, "4000"),
    ],
)
def test_the_memory_reckoned_is_what_the_null_gpu_hands_out(
    tmp_path: Path, workload: str, precision: str, batch: int, card_mib: int, workspace: str
) -> None:
    recipe = {"rn50": "nvidia_cosine", "hrnet": "cityscapes_benchmark"}[workload]
    settings = {**jobs.TINY, "DEVICE": "gpu", "DGXNGPU": "1", "DATA": "synthetic", "RECIPE": recipe, "IMAGE_SIZE": "0"}
    settings |= {"WORKLOAD": workload, "PRECISION": precision, "BATCHSIZE": str(batch)}
    settings |= {"NULLGPU_MEMORY_MIB": str(card_mib)}
    done = jobs.run([NULL_GPU, "./run_and_time.sh"], timeout_s=600, NULLGPU_OUT=str(tmp_path), **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    (log,) = tmp_path.glob(f"results/*/{workload}/result_0.txt")
    peak_mib = max(window["gpu_memory_mib"] for window in jobs.values(log, "step_window"))
    job = job_of(device="gpu", workload=workload, recipe=recipe, precision=precision, batchsize=batch)
    assert memory.program_mib(job) == pytest.approx(peak_mib, rel=0.02)
    assert f'"FLAGS_conv_workspace_size_limit": "{workspace}"' in log.read_text()


def needed_mib(**settings: Any) -> float:
    job = job_of(**{"device": "gpu", "recipe": "mlperf_lars", "precision": "amp_o2"} | settings)
    found = memory.program_mib(job)
    assert found is not None
    return found


def test_a_card_of_16_gib_gets_a_workspace_that_fits_the_published_batch() -> None:
    card_gib = 15.8
    beside_mib = needed_mib(precision="fp32", batchsize=128) + memory.BESIDE_MIB
    small, large = ((beside_mib + memory.workspace_limit_mib(gib)) / 1024 for gib in (card_gib, 32.0))
    assert small < card_gib < large


def test_memory_follows_what_is_computed_at_once() -> None:
    measured = traits_of("rn50").memory
    assert measured is not None
    peaks = measured.mib["amp_o2"]
    whole, parts = needed_mib(batchsize=256), needed_mib(batchsize=256, strategy="gradient_merge=4")
    assert parts == needed_mib(batchsize=64) == needed_mib(batchsize=256, image_size=112)
    assert (parts, whole) == (peaks[64], peaks[256])
    assert peaks[128] < needed_mib(batchsize=160) < peaks[192]
    assert needed_mib(batchsize=1) == needed_mib(batchsize=32), "a little too much rather than too little"
    assert needed_mib(batchsize=512) == 2 * peaks[256]


@pytest.mark.parametrize(
    "settings", [{}, {"recipe": "digits_small"}, {"recipe": "mlperf_lars", "strategy": "auto"}, {"workload": "hrnet"}]
)
def test_nothing_is_claimed_of_a_job_without_a_peak(settings: dict[str, str]) -> None:
    assert memory.program_mib(job_of(device="gpu", **settings)) is None  # type: ignore[arg-type]


def test_decoders_take_memory_by_the_largest_image_of_the_data(tmp_path: Path) -> None:
    """Two pipelines of a threads each: a buffer on the GPU, two pinned on the host, and three batches of FP16 ready."""
    settings: dict[str, Any] = {"device": "gpu", "recipe": "mlperf_lars", "precision": "amp_o2", "batchsize": 200}
    settings |= {"data_threads": 5, "datadir": str(tmp_path)}
    ready_mib = 3 * 200 * 224 * 224 * 4 * 2 / 2**20
    usual = memory.input_memory(job_of(**settings))
    assert usual.device_mib == pytest.approx(2 * (5 * 6 * 5980 * 6430 / 2**20 + ready_mib))
    assert usual.pinned_mib == pytest.approx(2 * 2 * 5 * 4 * 5980 * 6430 / 2**20)
    assert "5 threads, images to 5980 x 6430" in usual.words
    assert usual.unit_mib == pytest.approx(2 * 3400, rel=0.01), "what an H200's took, 3164 MiB at 8 images, 3436 at 256"
    for part, width, height in (("train", 3000, 1000), ("val", 2000, 2000)):
        (tmp_path / f"{part}.sizes.json").write_text(json.dumps({"width": width, "height": height}))
    assert "images to 3000 x 2000 pixels" in memory.input_memory(job_of(**settings)).words
    small = memory.input_memory(job_of(**settings | {"datadir": ""}))
    assert small.unit_mib == 0.0
    assert small.pinned_mib == 2 * 2 * 5 * 8 and small.device_mib == pytest.approx(2 * (5 * 16 + ready_mib))
    for nothing in ({"data": "synthetic"}, {"device": "cpu", "precision": "fp32"}):
        assert memory.input_memory(job_of(**settings | nothing)) == memory.NO_INPUT


def test_what_is_reckoned_is_what_the_decoders_are_told() -> None:
    hints, decoder = data._hints(4000, 3000), traits_of("rn50").decoder
    assert decoder is not None
    assert hints["device_memory_padding"] == decoder.device_padding(4000, 3000) == 6 * 12_000_000
    assert hints["host_memory_padding"] == decoder.host_padding(4000, 3000) == 4 * 12_000_000


@pytest.mark.parametrize(
    ("memory_gib", "batch", "limit", "status"),
    [(16, 128, "", "ok"), (16, 128, "4000", "warning"), (16, 256, "", "warning"), (32, 256, "", "ok")],
)
def test_a_batch_that_will_not_fit_is_said_before_the_run(
    memory_gib: int, batch: int, limit: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setenv("FLAGS_conv_workspace_size_limit", limit)
    job = job_of(device="gpu", recipe="mlperf_lars", precision="fp32", batchsize=batch)
    gpu = nvidia.Gpu(memory_gib=float(memory_gib))
    (found,) = judge_memory(gpu, job)
    assert (found.check, found.status) == ("gpu.memory", status)
    assert f"at BATCHSIZE={batch}: program " in found.wanted
    assert ("lower BATCHSIZE" in found.fix) == (status == "warning")
    assert not list(judge_memory(nvidia.Gpu(), job))


def test_a_workspace_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_conv_workspace_size_limit", "4GB")
    with pytest.raises(ValueError, match="FLAGS_conv_workspace_size_limit='4GB': must be a whole number, of MiB"):
        list(judge_memory(nvidia.Gpu(memory_gib=16.0), job_of(device="gpu", recipe="mlperf_lars")))


@pytest.mark.parametrize(
    ("system", "memory_gib", "batch", "status", "input_gib"),
    [
        ("DGX1", 15.8, {}, "warning", 2.3),  # its config file says to halve the batch there
        ("DGX1", 15.8, {"BATCHSIZE": "128"}, "ok", 2.0),
        ("DGX1", 15.8, {"BATCHSIZE": "128", "PRECISION": "fp32"}, "ok", 2.3),  # as published
        ("DGX1", 31.7, {}, "ok", 2.3),
        ("DGXA100", 39.4, {}, "ok", 9.9),  # with 3.3 GiB of a pipeline's JPEG unit, which a V100 does not have
        ("DGXA100_mlperf", 39.4, {}, "ok", 10.6),
        ("DGXA100", 39.4, {"BATCHSIZE": "512"}, "warning", 11.1),
        ("DGXA100", 79.2, {"BATCHSIZE": "512"}, "ok", 11.1),
    ],
)
def test_a_systems_own_batch_fits_its_cards(
    system: str, memory_gib: float, batch: dict[str, str], status: str, input_gib: float
) -> None:
    job = env.of_system(DGXSYSTEM=system, DATADIR="/no/data", **batch)
    capability = 70 if system == "DGX1" else 80
    (found,) = judge_memory(nvidia.Gpu(memory_gib=memory_gib, capability=capability), job)
    assert found.status == status, found.wanted
    assert f"input {input_gib} (" in found.wanted
    assert "images to 5980 x 6430 pixels" in found.wanted
    assert ("JPEG unit as on an H200" in found.wanted) == (capability == 80)
