"""What an importer must not take for something else: silent ranks, decimal commas, rows of evaluations, copies."""

import re
import shutil
from pathlib import Path

import pytest

from runlog import schema
from scoring.figure.systems import read_described
from scoring.importers.dllogger import Paddle
from scoring.importers.text import CUT, NUMBER, rows
from scoring.published import reproduce
from scoring.record import InputError
from tests import make_log
from tests.scoring import samples
from tests.scoring.samples import scoring
from tests.scoring.test_importers import MMENGINE, read, run, same_rows
from tests.scoring.test_published import ROWS, RULES


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e5", "1e5"),
        ("1.5e-3 s", "1.5e-3"),
        ("1.2epoch", "1.2"),
        ("1e", None),
        (f"1e{CUT}", None),
        (f"1e-{CUT}", None),
        ("6.92023-08-03 02:17", None),
    ],
)
def test_a_number_whose_end_cannot_be_told_is_none(text: str, number: str | None) -> None:
    found = re.match(NUMBER, text)
    assert (found and found[1]) == number


def times_of_rows(*lines: str) -> list[str | None]:
    """The step times in rows of NVIDIA's examples for Paddle, as printed."""
    found = rows(enumerate(lines, 1), Paddle.row_marker, Paddle.whole_line_marker, Paddle.row_pattern)
    return [row.values[4] for row in found if row.values is not None]


def test_a_row_that_is_broken_within_its_step_time_is_left_out() -> None:
    """Of 0.123 s, 0.1 stands before another process's line, and 23 behind it."""
    head = "DLL 2024-05-01 12:00:00.1 - Epoch: 0 Iteration: 10  train.loss : 6.9 train.batch_time :"
    rate = "s train.ips : 2600.0 images/s"
    assert times_of_rows(f"{head} 0.1", "another process", f"23 {rate}") == []
    assert times_of_rows(f"{head} 0.123 ", "another process", rate) == ["0.123"]


def mxnet(gpus: str = "") -> str:
    """A log of eight ranks of which only rank 0 printed: without its closing table, and with `gpus` or without."""
    text = samples.nvidia_mxnet(run())
    text = text[: text.index("train.ips\n" + " " * 11)]
    return text.replace("gpus : [0, 1, 2, 3, 4, 5, 6, 7]  ", gpus)


def with_rank(text: str, rank: int) -> str:
    """The log with one line of another rank, before its rows."""
    head, rows = text.split("\n", 1)
    return f"{head}\n[1,{rank}]<stderr>:UserWarning: Cannot decide type\n{rows}"


@pytest.mark.parametrize("rank", [1, 3])
def test_ranks_that_print_are_no_count_of_devices(tmp_path: Path, rank: int) -> None:
    """Of eight ranks two printed something. The log does not say how many there are."""
    record = read(tmp_path, with_rank(mxnet(), rank))
    assert (record.devices, record.batch_per_device, record.global_batch) == (None, None, 256)


def test_silent_ranks_contradict_no_count(tmp_path: Path) -> None:
    """Ranks 0 and 5 print, and the parameters list eight GPUs: that is not a contradiction. Rank 15 is one."""
    text = mxnet("gpus : [0, 1, 2, 3, 4, 5, 6, 7]  ")
    few = read(tmp_path, with_rank(text, 5))
    assert few.devices == 8 and [check for check in few.checks if check.what == "devices"] == []
    all_ranks = read(tmp_path, with_rank(text, 7))
    assert all_ranks.devices == 8 and [check.agree for check in all_ranks.checks if check.what == "devices"] == [True]
    more = read(tmp_path, with_rank(text, 15))
    assert more.devices is None and [check.agree for check in more.checks if check.what == "devices"] == [False]


@pytest.mark.parametrize(
    ("gpus", "devices"), [("[0, 1]", 2), ("0,1,2,3", 4), ("[3]", 1), ("0", 1), ("8", None), ("None", None)]
)
def test_lists_of_gpus(tmp_path: Path, gpus: str, devices: int | None) -> None:
    """`gpus` lists numbers, in brackets or not. A larger number alone may be a number of GPUs as well as one GPU."""
    assert read(tmp_path, mxnet(f"gpus : {gpus}  ")).devices == devices


def described(folder: Path, text: str) -> Path:
    """The log of a submission, whose system is described as two nodes of eight devices."""
    log = folder / "Lab" / "results" / "v100_n2" / "resnet" / "result_0.txt"
    log.parent.mkdir(parents=True)
    log.write_text(text)
    description = folder / "Lab" / "systems" / "v100_n2.json"
    description.parent.mkdir()
    description.write_text('{"number_of_nodes": 2, "accelerators_per_node": 8}')
    return log


@pytest.mark.parametrize("batch", [32, 64])
def test_devices_that_a_log_states_need_no_description(tmp_path: Path, batch: int) -> None:
    """The line of the parameters has both the eight GPUs and the batch of all: 256. The description is another's."""
    log = described(tmp_path, mxnet("gpus : [0, 1, 2, 3, 4, 5, 6, 7]  "))
    record = read_described(log, batch_per_device=batch)
    assert (record.devices, record.batch_per_device, record.described_by) == (8, batch, None)


def test_devices_by_a_batch_that_replaces_the_logs_own_are_held_to_the_description(tmp_path: Path) -> None:
    """The log says batches of 256 and of 32, and four GPUs or eight: only the batches give a number of devices."""
    gpus = "gpus : [0, 1, 2, 3, 4, 5, 6, 7]"
    log = described(tmp_path, samples.nvidia_mxnet(run()).replace(gpus, "gpus : [0, 1, 2, 3]"))
    assert read_described(log).devices == 8
    with pytest.raises(InputError, match="--batch says 64 images"):
        read_described(log, batch_per_device=64)


@pytest.mark.parametrize(("gpus", "devices"), [("[0]", 1), ("[0, 1, 2, 3, 4, 5, 6, 7]", None)])
def test_with_horovod_a_list_of_gpus_is_of_one_node(tmp_path: Path, gpus: str, devices: int | None) -> None:
    """Each process takes `gpus[hvd.local_rank()]` (fit.py): the batch of four such nodes was taken for that of one."""
    text = mxnet(f"gpus : {gpus}  kv_store : horovod  ")
    assert read(tmp_path, text).devices == devices
    assert read(tmp_path, with_rank(text, 31)).devices is None
    if devices is None:  # unless another place says as many
        assert read(tmp_path, text + samples.nvidia_mxnet(run())[-80:]).devices == 8
        assert read(tmp_path, with_rank(text, 7)).devices == 8


@pytest.mark.parametrize(("silent", "devices"), [(None, 16), (11, None)])
def test_with_horovod_each_rank_of_several_nodes_shows_their_number(
    tmp_path: Path, silent: int | None, devices: int | None
) -> None:
    """The older example prints from each rank, on two nodes of eight GPUs. If one rank is silent, it is not known."""
    text = samples.nvidia_mxnet_speed(samples.run_of(samples.steady(60), devices=16)).split("train.total_ips")[0]
    text = text.replace(", 8, 9, 10, 11, 12, 13, 14, 15]", "], kv_store='horovod'")
    first_line = text.splitlines()[0]
    others = [first_line.replace("[1,0]", f"[1,{rank}]") for rank in range(1, 16) if rank != silent]
    record = read(tmp_path, "\n".join([*others, text]))
    assert (record.devices, record.batch_per_device) == (devices, devices and 32)
    assert [check.agree for check in record.checks if check.what == "devices"] == [devices is not None]


def test_a_list_of_gpus_in_quotes(tmp_path: Path) -> None:
    text = samples.nvidia_mxnet_speed(run()).split("train.total_ips")[0]
    text = re.sub(r"\[1,\d\]<stderr>:", "", text)
    listed = text.replace("gpus=[0, 1, 2, 3, 4, 5, 6, 7]", "gpus='0,1,2,3,4,5,6,7'")
    assert listed != text and read(tmp_path, listed).devices == 8


@pytest.mark.parametrize("name", sorted(set(samples.WRITERS) - {"mllog"}))
def test_decimal_commas_are_refused(tmp_path: Path, name: str) -> None:
    """`batch_cost: 1,2500` is not 1 s. No tool prints such numbers; a log that went through another program may."""
    text = samples.WRITERS[name](samples.run_of([1.25] * 240, epoch_steps=120))
    assert read(tmp_path, text, name).windows
    commas = re.sub(r"(?<=\d)\.(?=\d)", ",", text)
    with pytest.raises(InputError):
        read(tmp_path, commas, name, format=name)


@pytest.mark.parametrize("unit", ["images/s/gpu", "img/sec/gpu", "images/min"])
@pytest.mark.parametrize("name", ["nvidia_pytorch", "nvidia_mxnet", "nvidia_paddle", "nvidia_tensorflow", "keras"])
def test_a_rate_of_one_device_or_minute_is_not_one_of_all_a_second(tmp_path: Path, name: str, unit: str) -> None:
    text = re.sub(r"(ips : [\d.]+)(?: images/s)?", r"\1 img/sec", samples.WRITERS[name](run()))
    for glued in ("", "/opt/conda/lib/python3/site.py:1: UserWarning ", "WARNING "):
        assert read(tmp_path, text.replace("img/sec", f"img/sec{glued}")).windows
    with pytest.raises(InputError, match=rf"a rate in {unit}, not in|no line of a known format"):
        read(tmp_path, text.replace("img/sec", unit).replace("examples/second", "examples/second/replica"))


def test_mmengine_says_how_many_devices_run(tmp_path: Path) -> None:
    """mmengine prints its world size as `GPU number`."""
    assert read(tmp_path, MMENGINE).devices is None
    record = read(tmp_path, "    Distributed training: True\n    GPU number: 16\n" + MMENGINE)
    assert (record.devices, record.field_lines["devices"]) == (16, 2)


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        ("samples_per_gpu=2, train_dataloader=dict(samples_per_gpu=4), val_dataloader=dict(samples_per_gpu=1)", 4),
        ("val_dataloader=dict(samples_per_gpu=1, args=(1, 2)), val=dict(samples_per_gpu=3), samples_per_gpu=2", 2),
        ("test_dataloader=dict(samples_per_gpu=1)", None),
        ("train_dataloader=dict(sampler=dict(batch_size=5), samples_per_gpu=4)", 4),
        ("train_dataloader=dict(loaders=[dict(samples_per_gpu=4), dict(samples_per_gpu=12)])", None),
    ],
)
def test_of_mmcv_s_loaders_that_of_training_says_the_batch(tmp_path: Path, data: str, batch: int | None) -> None:
    """A loader's own section goes before the number of all loaders (mmseg/apis/train.py)."""
    text = samples.mmseg(run())
    for printed in (data, data.replace(", ", ",\n")):
        with_loaders = text.replace("    samples_per_gpu=32,", f"data = dict(\n    {printed})")
        assert with_loaders != text and read(tmp_path, with_loaders).batch_per_device == batch


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        ("    # samples_per_gpu=2 on small cards\n    samples_per_gpu=4,  # was samples_per_gpu=3", 4),
        ("# fp16 = dict(loss_scale=512.), use_fp16 = True\nsamples_per_gpu=4", 4),
        ("dict(a='#', samples_per_gpu=4), samples_per_gpu=4", 4),
        ("data = dict(samples_per_gpu=2)\ndata = dict(samples_per_gpu=4)", None),
    ],
)
def test_a_configuration_of_mmcv_may_be_printed_as_its_files_stand(
    tmp_path: Path, data: str, batch: int | None
) -> None:
    """`cfg.text` holds comments, and a base file before the one that replaces its values."""
    text = samples.mmseg(run())
    record = read(tmp_path, text.replace("    samples_per_gpu=32,", data))
    assert (record.batch_per_device, record.precision) == (batch, read(tmp_path, text).precision)
    assert [check.agree for check in record.checks if check.what == "batch_per_device"] == [False] * (batch is None)


def test_a_run_of_gluoncv_that_goes_on_in_the_file_of_another_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Its epochs go on, and newer Pythons print the arguments in the order of their definition."""
    text = samples.gluoncv(run()).replace("Namespace(batch_norm", "Namespace(data_dir='~/data', batch_norm")
    resumed = re.sub(r"(?i)\bepoch ?\[?(\d+)", lambda found: found[0].replace(found[1], str(int(found[1]) + 50)), text)
    with pytest.raises(InputError, match="2 runs in one log"):
        read(tmp_path, text + resumed.replace("num_gpus=8", "num_gpus=4"))


def test_epochs_without_a_number_may_be_parts_of_one_and_get_no_images(tmp_path: Path) -> None:
    """As in MLPerf logs that tell by `samples_count` how far a run is; each of these intervals is half an epoch."""
    log = make_log.Log(tick_ms=0)
    log.event(schema.SUBMISSION_BENCHMARK, "resnet")
    log.event(schema.TRAIN_SAMPLES, 100_000)
    for interval in range(4):
        for mark in ("epoch_start", "epoch_stop"):
            log.mllog.event(mark, None, metadata={"samples_count": 50_000 * interval}, time_ms=int(log.now_ms))
            log.now_ms += 50_000
    assert {window.images for window in read(tmp_path, log.text.getvalue(), devices=8).windows} == {None}


def test_keras_ranks_that_each_count_their_own_gpus_leave_the_devices_unknown(tmp_path: Path) -> None:
    lines = samples.WRITERS["keras"](samples.run_of(samples.steady(60))).splitlines()
    both = "\n".join(f"[1,{rank}]<stderr>:{line}" for line in lines for rank in (0, 1))
    record = read(tmp_path, both)
    assert (record.devices, record.nodes) == (None, None)
    on_two_nodes = both.replace("'worker_hosts': None", "'worker_hosts': 'a:5000,b:5000'")
    assert read(tmp_path, on_two_nodes).nodes == 2


@pytest.mark.parametrize(
    ("strategy", "hosts", "nodes"),
    [
        ("mirrored", "None", 1),
        ("mirrored", "''", 1),
        ("multi_worker_mirrored", "None", None),
        ("multi_worker_mirrored", "''", None),
        ("parameter_server", "None", None),
        ("multi_worker_mirrored", "'a:5000,b:5000'", 2),
    ],
)
def test_keras_hosts_may_be_named_by_the_environment_alone(
    tmp_path: Path, strategy: str, hosts: str, nodes: int | None
) -> None:
    """`configure_cluster` takes the hosts of TF_CONFIG, and the configuration then says `worker_hosts: None`."""
    text = samples.keras(run()).replace("'num_gpus'", f"'distribution_strategy': '{strategy}', 'num_gpus'")
    record = read(tmp_path, text.replace("'worker_hosts': None", f"'worker_hosts': {hosts}"))
    assert (record.nodes, record.devices) == (nodes, nodes and 8 * nodes)


EVALUATION = "".join(
    ["Starting Model Evaluation...\n"]
    + [f"DLL 2022-11-24 05:00:{step:02d}.0 - (0, {step}) total_ips : 99999.5 \n" for step in range(20, 60)]
    + ["DLL 2022-11-24 05:01:00.0 - () eval_throughput : 99999.5 images/s\nEnding Model Evaluation ...\n"]
)


def test_rows_of_an_evaluation_are_not_of_training(tmp_path: Path) -> None:
    """NVIDIA's TensorFlow example evaluates with the hook that prints the rows of training, in the same words."""
    text = samples.nvidia_tensorflow(run())
    clean = read(tmp_path, text)
    assert same_rows(clean, read(tmp_path, text + EVALUATION))
    with pytest.raises(InputError, match="without one training row"):
        read(tmp_path, "PARAMETER arch : resnet50 \n" + EVALUATION)
    again = text + EVALUATION + "Starting Model Training...\n" + text.replace("- (0, ", "- (3, ")
    assert len(read(tmp_path, again, segment=1).windows) + len(read(tmp_path, again, segment=2).windows) == 48


@pytest.mark.parametrize("name", ["nvidia_tensorflow", "nvidia_json"])
def test_rows_of_training_in_other_words_than_those_of_the_evaluation(tmp_path: Path, name: str) -> None:
    """`train_and_evaluate` prints `imgs_per_sec` of training, then `total_ips` of its evaluation; JSON has no words."""
    text = samples.WRITERS[name](run()).replace("train.total_ips", "total_ips").replace("training_benchmark", "train")
    head, evaluation = text.split("\n", 1)
    benchmark = read(tmp_path, text)
    training = re.sub(r'(?<=[ "])total_ips', "imgs_per_sec", evaluation)
    evaluation = evaluation.replace("512", "99999")
    assert same_rows(benchmark, read(tmp_path, f"{head}\n{training}{evaluation}"))
    assert same_rows(benchmark, read(tmp_path, f"{head}\n{training}"))


@pytest.mark.parametrize("name", ["nvidia_tensorflow", "nvidia_json"])
def test_steps_of_tensorflow_count_through_the_epochs(tmp_path: Path, name: str) -> None:
    """TrainingLoggingHook prints (global_step // steps_per_epoch, global_step): no row has the steps of all before."""
    text = samples.WRITERS[name](run()).replace("train.total_ips", "imgs_per_sec")
    text = text.replace("training_benchmark", "train")
    later = re.sub(r"(?<=[(\[])0(?=, [12]\d\d[)\]])", "1", text)
    assert later != text
    assert [window.steps for window in read(tmp_path, later).windows] == [
        window.steps for window in read(tmp_path, text).windows
    ]


@pytest.mark.parametrize("name", ["nvidia_tensorflow", "nvidia_json"])
@pytest.mark.parametrize("mode", ["evaluate", "inference_benchmark"])
def test_a_run_that_only_evaluates_is_refused(tmp_path: Path, name: str, mode: str) -> None:
    """The parameter `mode` says it, also in JSON, which has no line in words."""
    text = samples.WRITERS[name](run())
    if name == "nvidia_json":
        text = text.replace('"arch":', '"mode": "training_benchmark", "arch":').replace("train.total_ips", "total_ips")
    assert read(tmp_path, text).problems == ()
    log = samples.write(tmp_path, "a.log", text.replace("training_benchmark", mode))
    status, _, error = scoring("score", log, "--protocol", "window")
    assert status == 2 and f"line 1: mode {mode}: the rows are of an evaluation, not of training" in error


def test_a_log_of_two_programs_keeps_its_start(tmp_path: Path) -> None:
    """Each line stands twice. The second banner is a copy, and no start that failed."""
    banner = "==        PaddleClas is powered by PaddlePaddle !        ==\n"
    text = samples.paddleclas_static(run())
    launcher, rest = text.split("[2023/07/28 07:49:52]", 1)
    text = f"{launcher}{banner}[2023/07/28 07:49:52]{rest}"
    twice = "".join(f"{line}\n{line}\n" for line in text.splitlines())
    clean, copied = read(tmp_path, text), read(tmp_path, twice)
    assert same_rows(clean, copied) and (clean.devices, copied.devices) == (8, 8) and copied.segment is None
    failed = f"{launcher}{banner}OSError\n{banner}[2023/07/28 07:49:52]{rest}"
    assert read(tmp_path, failed).segment is not None


def test_steps_that_no_row_of_paddleclas_has_are_no_contradiction(tmp_path: Path) -> None:
    """In epochs of 16 steps the row at 10 is of 6 steps, as the meters are reset at 5; by the stamps it is of 10."""
    text = samples.paddleclas_dygraph(samples.run_of([0.5] * 320, epoch_steps=16))
    assert [window.steps for window in read(tmp_path, text).windows] == [1, 6] + [6, 6] * 19
    status, out, error = scoring("score", samples.write(tmp_path, "a.log", text), "--protocol", "window")
    assert (status, error) == (0, "") and out.startswith("512.000 images/s") and "ways_disagree" not in out
    longer = samples.paddleclas_dygraph(samples.run_of([0.5] * 320, epoch_steps=80))
    slow = read(tmp_path, longer.replace("batch_cost: 0.5", "batch_cost: 0.2"))
    assert [check.refused for check in slow.checks if check.what == "time"] == [True]  # the other rows are still held


@pytest.mark.parametrize("name", ["paddleclas_static", "paddleclas_dygraph", "paddleseg"])
def test_a_launch_that_failed_at_once_says_no_devices(tmp_path: Path, name: str) -> None:
    """The second launch, on 4 of the 8 devices, trained; the trainers of the first one printed no banner."""
    text = samples.WRITERS[name](samples.run_of(samples.steady(240), devices=4))
    failed = samples.WRITERS[name](samples.run_of(samples.steady(240), devices=8))
    launch = [line for line in failed.splitlines() if re.search("nnodes|replicas|TRAINERS_NUM", line)]
    record = read(tmp_path, "\n".join([*launch, "ModuleNotFoundError: No module named 'ppcls'", text]))
    assert (
        launch
        and record.devices == 4
        and not [check for check in record.checks if check.what == "devices" and not check.agree]
    )


OF_LAST_START = (
    *("oneflow", "nvidia_pytorch", "nvidia_tensorflow", "nvidia_mxnet", "nvidia_mxnet_speed"),
    *("nvidia_json", "nvidia_nvlog"),
)


@pytest.mark.parametrize(("batch", "devices"), [(64, 8), (64, 4)])
@pytest.mark.parametrize("name", OF_LAST_START)
def test_a_start_that_failed_before_its_first_row_says_nothing(
    tmp_path: Path, name: str, batch: int, devices: int
) -> None:
    """Out of memory with the larger batch, and started again into the same file."""
    failed = samples.WRITERS[name](samples.run_of([0.5] * 240, batch=batch, devices=devices))
    first_row = read(tmp_path, failed).windows[0].line
    head = "".join(failed.splitlines(keepends=True)[: first_row - 1])
    text = samples.WRITERS[name](samples.run_of([0.5] * 240, batch=32, devices=8))
    record = read(tmp_path, f"{head}RuntimeError: CUDA out of memory\n{text}")
    assert (record.devices, record.batch_per_device) == (8, 32)
    assert not [check for check in record.checks if not check.agree]


def test_an_empty_section_amp_states_no_precision(tmp_path: Path) -> None:
    """`AMP : None` is a section that the command line took away."""
    text = samples.paddleclas_dygraph(run())
    none = re.sub(r"AMP : \n.*level : O2", "AMP : None", text)
    assert none != text and read(tmp_path, text).precision == "amp_o2" and read(tmp_path, none).precision is None


@pytest.mark.parametrize("name", ["paddleseg", "mmseg"])
def test_half_a_number_is_no_number(tmp_path: Path, name: str) -> None:
    """A line end breaks a row inside its time: `1.` and `2500`. The row is left out, and is not read as 1 s."""
    text = samples.WRITERS[name](samples.run_of([1.25] * 240))
    clean = read(tmp_path, text)
    lines = text.splitlines(keepends=True)
    where = clean.windows[4].line - 1
    lines[where] = re.sub(r" (time|batch_cost): 1\.", r" \1: 1.\n", lines[where])
    record = read(tmp_path, "".join(lines))
    assert "".join(lines) != text and len(record.windows) == len(clean.windows) - 1
    assert {window.printed_step_time_s for window in record.windows} == {1.25}


def test_a_log_that_cannot_be_read_does_not_hide_the_others(published_logs: Path, tmp_path: Path) -> None:
    """Linux fails a read of a process's memory at its first byte, also for root."""
    shutil.copy(published_logs / "paddleseg_v100_gpu1_fp32_bs8.log", tmp_path)
    for name in ("paddleclas_v100_gpu8_fp32_bs256.log", "mine.log"):
        (tmp_path / name).symlink_to("/proc/self/mem")
    verdicts, unknown = reproduce.reproduce(tmp_path, RULES, ROWS)
    notes = {Path(found["logs"][0]).name: found["notes"] for found in verdicts}
    assert len(notes) == 2 and "put/output error" in notes["paddleclas_v100_gpu8_fp32_bs256.log"][0]
    assert unknown == [f"{tmp_path / 'mine.log'} (Input/output error)"]
    assert sorted(found["borne_out"] is None for found in verdicts) == [False, True]


@pytest.mark.parametrize(
    "label",
    ["", "0: ", " 0: ", "[1,0]<stdout>:", "[1,0]<stdout>: ", "trainer_1  | ", "2026-01-01T00:00:00.123456789Z "],
)
def test_the_model_of_a_paddleseg_log_is_read_behind_a_launchers_label(tmp_path: Path, label: str) -> None:
    lines = samples.paddleseg(run()).splitlines()
    labelled = "".join(f"{label}{line}\n" for line in lines)
    assert read(tmp_path, labelled).model == "FCN HRNet_W18"


def test_a_model_within_another_section_names_no_network(tmp_path: Path) -> None:
    section = "model:\n  backbone:\n    type: HRNet_W18\n  type: FCN\n"
    text = samples.paddleseg(run())
    assert text.count(section) == 1
    other = "distill:\n  model:\n    type: DeepLabV3\n"
    assert read(tmp_path, text.replace(section, other)).model is None
    assert read(tmp_path, text.replace(section, other + section)).model == "FCN HRNet_W18"


def test_only_the_block_backbone_names_the_backbone(tmp_path: Path) -> None:
    text = samples.paddleseg(run())
    losses = "model:\n  aux_loss:\n    type: LovaszSoftmaxLoss\n"
    assert read(tmp_path, text.replace("model:\n", losses)).model == "FCN HRNet_W18"
    assert read(tmp_path, text.replace("model:\n  backbone:\n    type: HRNet_W18\n", losses)).model == "FCN"


def test_a_backbone_that_another_section_repeats_is_read(tmp_path: Path) -> None:
    """YAML marks a block that is printed twice by an anchor, and prints it once."""
    text = samples.paddleseg(run())
    assert read(tmp_path, text.replace("  backbone:\n", "  backbone: &id001\n")).model == "FCN HRNet_W18"
