"""One run's figure where its log is at odds with itself, or holds rows of unequal work, and the warnings of a run."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from compliance import mlperf
from compliance.official.rounds import SubmissionRuns
from runlog import schema
from scoring.figure import protocols, warnings
from scoring.figure.run_count import with_runs_of_benchmark
from scoring.figure.score import score
from scoring.importers import read_record
from scoring.record import InputError, Record, Window
from tests import make_log
from tests.scoring import samples
from tests.scoring.samples import command, write
from tests.scoring.test_window_warnings import noise, record_of

RUN_TIME = dataclasses.replace(protocols.find("mlperf"), runs=1, over_runs="mean", by_benchmark=False)
STAMPS = dataclasses.replace(protocols.find("dlperf"), runs=1)


def read(folder: Path, text: str) -> Record:
    return read_record(write(folder, "run.log", text))


def clock_set(text: str, by_ms: int, before: str) -> str:
    """A log of our own whose clock was set by so much before its first line that holds `before`."""
    return samples.moved(text, by_ms, text.rindex("\n", 0, text.index(before)))


def clock_event(by_s: object) -> str:
    fields = {"key": "clock_set", "value": by_s, "metadata": {"step": 66}, "time_ms": make_log.CLOCK_START_MS}
    return ":::MLLOG " + json.dumps(fields | {"event_type": "POINT_IN_TIME", "namespace": ""})


def test_no_figure_of_time_stamps_that_go_back_and_a_warning_of_those_that_leap(tmp_path: Path) -> None:
    text = samples.mllog(samples.run_of([0.5] * 200))
    record = read(tmp_path, clock_set(text, -30_000, '"step": 60,'))
    with pytest.raises(InputError, match=r"clock was set: the time stamp of line \d+ lies before that of line \d+"):
        score([record], STAMPS)
    windows = score([record], protocols.find("window"))  # of the rows' own times
    assert windows.value == pytest.approx(512, rel=1e-3)
    [problem] = [warning.found for warning in windows.warnings if warning.check == "log_problem"]
    assert "is 25 s before that of line" in problem and "the clock was set" in problem
    outside = read(tmp_path, clock_set(text, -30_000, '"step": 150,'))  # steps 20 to 120 end before it
    assert score([outside], STAMPS).value == pytest.approx(512, rel=0.05)
    leapt = read(tmp_path, clock_set(text, 3_600_000, '"step": 60,'))
    [leaps] = [warning for warning in score([leapt], STAMPS).warnings if "rows_" in warning.check]
    assert leaps.check == "rows_disagree" and "make, 512: the clock was set" in leaps.found
    assert not [w for w in score([read(tmp_path, text)], STAMPS).warnings if "rows_" in w.check]
    slipped = read(tmp_path, clock_set(text, -4_000, '"step": 60,'))  # by less than a row takes: no stamp goes back
    by_stamps = score([slipped], STAMPS)
    [warned] = [warning for warning in by_stamps.warnings if "rows_" in warning.check]
    assert by_stamps.value == pytest.approx(512 * 50 / 46) and "is 1.09 times what the same rows' own" in warned.found
    assert not [w for w in score([slipped], protocols.find("window")).warnings if "rows_" in w.check]


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ('"step": 150,', r"clock was set: the time stamp of line \d+ lies before"),
        ('"run_stop"', r"run_start to run_stop are 40 s and the windows alone 100 s: the clock"),
    ],
)
def test_no_run_time_of_a_clock_that_was_set_back(tmp_path: Path, before: str, says: str) -> None:
    text = samples.mllog(samples.run_of([0.5] * 200))
    assert score([read(tmp_path, text)], RUN_TIME).value == pytest.approx(100 / 60, rel=1e-3)
    with pytest.raises(InputError, match=says):
        score([read(tmp_path, clock_set(text, -60_000, before))], RUN_TIME)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('# {"log": {"format": "paddle-reference-log", "version": 1}}', ""),
        ('# {"log": {"format": "paddle-reference-log", "version": 2}}', "version 2; this reader knows"),
        (clock_event(2.5), ""),
        (clock_event(-2.5), "the clock was set back by 2.5 s: the time of the run is too short by as much"),
        (clock_event("late"), ""),
    ],
)
def test_a_log_that_says_that_its_times_or_form_are_others_has_a_problem(tmp_path: Path, line: str, says: str) -> None:
    text = samples.mllog(samples.run_of([0.5] * 100))
    before_it = (
        "" if line.startswith("#") else text.partition(":::MLLOG")[0]
    )  # a section is above the header's other ones
    text = f"{before_it}{line}\n{text.removeprefix(before_it)}"
    figure = score([read(tmp_path, text)], protocols.find("window"))
    problems = [warning.found for warning in figure.warnings if warning.check == "log_problem"]
    assert len(problems) == (says != "") and says in "".join(problems)


@pytest.mark.parametrize("marks_measured", [True, False])
@pytest.mark.parametrize(
    ("protocol", "to_skip", "refuses_all"),
    [("window", 0, False), ("fleetx", 0, False), ("dlperf", 5, True)],
)
def test_no_window_that_is_marked_as_warm_up_is_measured(
    protocol: str, to_skip: int, refuses_all: bool, marks_measured: bool, tmp_path: Path
) -> None:
    """A warm-up of 50 steps is longer than the 20 that the protocols skip; then a step is four times as fast."""
    text = samples.mllog(samples.run_of([1.0] * 50 + [0.25] * 100), mode="throughput", warm_up=50)
    if not marks_measured:
        text = text.replace('"phase": "measured"', '"phase": "train"')
    log = write(tmp_path, "a.txt", text)
    options: tuple[object, ...] = (log, "--protocol", protocol, "--runs", 1)
    if refuses_all or not marks_measured:
        code, _, error = command("score", *options)
        says = f"protocol {protocol} would measure windows that the log marks as warm-up"
        assert code == 2 and re.search(rf"{says} \(lines \d+ to \d+\); give --skip N", error)
        options = (*options, "--skip", to_skip)
    code, result, _ = command("score", *options)
    assert code == 0 and result["value"] == pytest.approx(1024, rel=1e-3)


def test_one_window_of_the_warm_up_is_one_line(tmp_path: Path) -> None:
    text = samples.mllog(samples.run_of([1.0] * 50 + [0.25] * 100), mode="throughput", warm_up=50)
    log = write(tmp_path, "a.txt", text)
    code, _, error = command("score", log, "--protocol", "dlperf", "--runs", 1, "--skip", 4)
    assert code == 2 and re.search(r"as warm-up \(line \d+\); give --skip N", error)


@pytest.mark.parametrize("protocol", ["window", "dlperf"])
def test_a_marked_warm_up_within_the_skipped_steps_is_no_error(protocol: str, tmp_path: Path) -> None:
    text = samples.mllog(samples.run_of([1.0] * 20 + [0.25] * 100), mode="throughput", warm_up=20)
    log = write(tmp_path, "a.txt", text.replace('"phase": "measured"', '"phase": "train"'))
    code, result, _ = command("score", log, "--protocol", protocol, "--runs", 1)
    assert code == 0 and result["value"] == pytest.approx(1024, rel=1e-3)


ROW = "train: epoch {}, iter {}, loss: 1.0, top_1: 0.0, top_k: 0.0, samples/s: {:.3f}\n"


def test_a_rate_over_time_and_a_mean_of_rates(tmp_path: Path) -> None:
    rates = [800.0 if at <= 160 else (600.0 if at % 2 else 740.0) for at in range(1, 401)]
    record = read(tmp_path, "".join(ROW.format(0, 20 * at, rate) for at, rate in enumerate(rates, 1)))
    kept = rates[1:]  # the first 20 steps are warm-up
    found = score([record], protocols.find("window"))
    assert found.value == pytest.approx(len(kept) / sum(1 / rate for rate in kept), rel=1e-9)
    low, high = found.interval_95 or (0, 0)
    assert low < found.value < high
    assert found.median_window_rate == pytest.approx(740)
    rates_averaged = dataclasses.replace(protocols.find("window"), over_steps="mean_of_printed_rates")
    assert score([record], rates_averaged).value == pytest.approx(sum(kept) / len(kept), rel=1e-9)
    [slower] = [warning.found for warning in found.warnings if warning.check == "throttling"]
    assert abs(int(slower.split()[2]) - 160) <= 2 and " of 399 " in slower


def test_rows_of_more_steps_weigh_more(tmp_path: Path) -> None:
    """OneFlow's last row of an epoch may hold more steps than the others."""
    rows = [(epoch, at, 2900.0 if at < 251 else 2400.0) for epoch in range(3) for at in (*range(20, 201, 20), 251)]
    record = read(tmp_path, "".join(ROW.format(*row) for row in rows))
    found = score([record], protocols.find("window"))
    fast, slow = 3 * 200 - 20, 3 * 51  # steps
    assert found.value == pytest.approx((fast + slow) / (fast / 2900 + slow / 2400), rel=1e-9)
    by_rows = dataclasses.replace(protocols.find("oneflow"), runs=1)  # its own rule: each row once
    assert score([record], by_rows).value == pytest.approx((29 * 2900 + 3 * 2400) / 32, rel=1e-9)


def test_stamps_are_taken_after_the_rows_that_are_skipped(tmp_path: Path) -> None:
    text = "".join(ROW.format(0, 20 * at, 800.0)[:-1] + f" [{1597933942 + 3.2 * at:.2f}]\n" for at in range(1, 401))
    record = read(tmp_path, f"batch_size_per_device = 128\ngpu_num_per_node = 1\nnum_nodes = 1\n{text}")
    stamps = dataclasses.replace(STAMPS, take_steps=None)
    found = score([record], stamps, skip=170)
    assert found.runs[0].windows == 400 - 170 and found.runs[0].first_line == 3 + 170
    assert found.value == pytest.approx(800, rel=1e-6)


def test_a_row_whose_step_cannot_be_read_does_not_move_the_rows_after_it(tmp_path: Path) -> None:
    text = samples.mllog(samples.run_of([0.5] * 200))
    garbled = read(tmp_path, text.replace('"step": 40,', '"step": "4O",'))
    assert score([garbled], STAMPS).value == pytest.approx(score([read(tmp_path, text)], STAMPS).value)


def test_no_stamps_are_taken_after_an_epoch_of_unknown_steps() -> None:
    """Of the rows after it nobody knows how many steps lie between them and those before it."""
    epochs = [Window(line=n, epoch=n, steps=100, images=25_600, end_s=50.0 * n) for n in (1, 2, 3, 4)]
    record = Record(
        file="a.log", sha256="0", lines=4, format="mllog", devices=8, batch_per_device=32, windows=tuple(epochs)
    )
    assert score([record], STAMPS).value == pytest.approx(512)
    epochs[1].steps = None
    with pytest.raises(InputError, match="takes 100 steps after warm-up and the log has 0"):
        score([record], STAMPS)
    epochs[0].steps = None
    with pytest.raises(InputError, match="the log does not say how many steps were done at any of its time stamps"):
        score([record], STAMPS)


def test_a_batch_that_the_rows_deny_is_refused(tmp_path: Path) -> None:
    """Rate x step time of one device is its batch, whatever the options say, and as far as the digits go."""
    texts = [samples.paddleseg(samples.run_of([s] * 290, devices=1, batch=1)) for s in (3.1563, 13.3)]
    text, slower = (text.replace("batch_size: 1\n", "") for text in texts)
    assert read(tmp_path, slower).batch_per_device == 1  # 13.3 s x 0.0752 a second
    other = samples.paddleclas_static(samples.run_of([0.5] * 200)).replace("batch_size : 32", "batch_size : 64")
    clas = read(tmp_path, other)
    [check] = [check for check in clas.checks if check.what == "batch"]
    assert clas.batch_per_device == 32 and not check.agree and check.ways[0].endswith("the configuration, 64")
    path = write(tmp_path, "run.log", text)
    seg = protocols.find("perf-seg")
    says = "batch_per_device from the options: batch: the options: 8 a device; lines 11 to 39: rate x step time, 0.9999"
    with pytest.raises(InputError, match=says):
        score([read_record(path, devices=1, batch_per_device=8)], seg)
    right = score([read_record(path, devices=1, batch_per_device=1)], seg)
    assert right.value == pytest.approx(1 / 3.1563, rel=1e-9)
    assert not [warning for warning in right.warnings if warning.check == "ways_disagree"]


def test_each_of_our_own_runs_in_one_log_keeps_its_header(tmp_path: Path) -> None:
    texts = [samples.mllog(samples.run_of([seconds] * 40)) for seconds in (0.5, 0.6)]
    path = write(tmp_path, "run.log", texts[0] + texts[1].replace("2.6.2", "2.6.3"))
    first, second = (read_record(path, segment=number) for number in (1, 2))
    assert first.header.keys() == second.header.keys() == {"log", "packages", "run_summary"}
    assert (first.software["paddlepaddle-gpu"], second.software["paddlepaddle-gpu"]) == ("2.6.2", "2.6.3")
    assert first.devices == second.devices == 8
    assert first.segment is not None and second.segment == (len(texts[0].splitlines()) + 1, second.lines)


def test_what_cannot_be_measured_is_said_as_it_is(tmp_path: Path) -> None:
    log = read(tmp_path, samples.paddleclas_static(samples.run_of([0.5] * 200)))
    with pytest.raises(InputError, match="protocol dlperf counts from the stamp of a row: give --skip 1 or more"):
        score([log], STAMPS, skip=0)
    long_rows = read(tmp_path, samples.paddleclas_static(samples.run_of([0.5] * 600, every=150)))
    with pytest.raises(InputError, match=r"the row of line \d+ holds 150 steps and the protocol takes 100; take"):
        score([long_rows], dataclasses.replace(protocols.find("fleetx"), runs=1))
    aborted = read(tmp_path, samples.mllog(samples.run_of([0.5] * 5)))
    with pytest.raises(InputError, match="the log holds no windows: nothing was measured"):
        score([aborted], protocols.find("window"))


def epochs_log(
    path: Path,
    *,
    evaluation_ms: int,
    marked: bool = False,
    last: int = 8,
    every: int = 1,
    idle_ms: int | None = None,
    eval_samples: bool = True,
) -> Path:
    """An MLPerf log of epochs 1 to `last` of a second by their own stamps, evaluated after each second one.

    The log marks the evaluations if they are `marked`, and says their images if `eval_samples`. With `idle_ms` the run
    stops, and stood still that long before the first epoch.
    """
    log = make_log.Log(tick_ms=0)
    log.now_ms = 1_600_000_000_000
    log.event(schema.SUBMISSION_BENCHMARK, "resnet")
    log.event(schema.TRAIN_SAMPLES, 1_281_167)
    if eval_samples:
        log.event(schema.EVAL_SAMPLES, 50_000)
    log.event(schema.GLOBAL_BATCH_SIZE, 4096)
    log.mark(schema.RUN_START)
    log.now_ms += idle_ms or 0
    for epoch in range(1, last + 1, every):
        log.mark(schema.EPOCH_START, schema.InEpoch(epoch_num=epoch))
        log.now_ms += 1000
        log.mark(schema.EPOCH_STOP, schema.InEpoch(epoch_num=epoch))
        if marked and epoch % 2 == 0:
            log.mark(schema.EVAL_START, schema.InEpoch(epoch_num=epoch))
        log.now_ms += evaluation_ms * (epoch % 2 == 0) + 1000 * (every - 1)
        if marked and epoch % 2 == 0:
            log.mark(schema.EVAL_STOP, schema.InEpoch(epoch_num=epoch))
    if idle_ms is not None:
        log.mark(schema.RUN_STOP, schema.Ended(status="success"))
    return write(path.parent, path.name, log.text.getvalue())


@pytest.mark.parametrize(
    ("sizes", "agree", "says"),
    [
        ({"evaluation_ms": 60}, True, "first to last epoch, 8.18 s"),  # 2 % of the run
        ({"evaluation_ms": 300}, False, "first to last epoch, 8.9 s"),  # which no line marks
        ({"evaluation_ms": 300, "marked": True}, True, "first to last epoch without evaluations, 8 s"),
        (
            {"evaluation_ms": 300, "marked": True, "eval_samples": False},
            False,
            "first to last epoch with evaluations (they cannot be left out, as the log does not say eval_samples",
        ),
        # The epochs were only launched, and the evaluations wait for the work: no figure.
        ({"evaluation_ms": 1400}, False, "first to last epoch, 12.2 s"),
        ({"evaluation_ms": 3000, "marked": True}, False, "first to last epoch without evaluations, 15.8292 s"),
        # Evaluations as long, or work that they wait for: no line tells which.
        ({"evaluation_ms": 1400, "marked": True, "eval_samples": False}, False, "with --protocol mlperf), 12.2 s"),
        ({"evaluation_ms": 60, "idle_ms": 300}, True, "first to last epoch, 8.18 s"),
        ({"evaluation_ms": 60, "idle_ms": 1000}, False, "run_start to run_stop, 9.24 s"),
        # One of four is logged, as some submitters do: the run's time is that of all of them.
        (
            {"evaluation_ms": 60, "last": 32, "every": 4},
            True,
            "first to last epoch, 29 s, which is 1.28117e+06",
        ),
    ],
)
def test_epochs_are_set_against_the_runs_time(tmp_path: Path, sizes: dict, agree: bool, says: str) -> None:
    record = read_record(epochs_log(tmp_path / "log.txt", **sizes), devices=8)
    [check] = [check for check in record.checks if check.what == "epochs against the run's time"]
    assert (check.agree, check.refused) == (agree, sizes["evaluation_ms"] >= 1400) and says in str(check)
    if check.refused:
        with pytest.raises(InputError, match=rf"two ways to it contradict each other.*{re.escape(says)}, .* images/s"):
            score([record], protocols.find("window"))
        return
    result = score([record], protocols.find("window"))
    assert result.value == pytest.approx(1_281_167) and result.one_clock == []
    assert any(says in warning.found for warning in result.warnings) == (not agree)


def test_an_evaluation_that_goes_on_into_the_next_epoch_is_left_out_up_to_there(tmp_path: Path) -> None:
    """The evaluations after epochs 2, 4 and 6 take 0.3 s between epochs, and then 0.5 s of the next epoch."""
    path = epochs_log(tmp_path / "log.txt", evaluation_ms=300, marked=True)
    lines = path.read_text().splitlines(keepends=True)
    for number in (2, 4, 6):
        [at] = [at for at, line in enumerate(lines) if '"eval_stop"' in line and f'"epoch_num": {number}}}' in line]
        stop = lines.pop(at)
        lines.insert(at + 1, samples.moved(stop, 500, 0))  # behind the line of the epoch's start
    path.write_text("".join(lines))
    record = read_record(path, devices=8)
    [check] = [check for check in record.checks if check.what == "epochs against the run's time"]
    assert check.agree and "first to last epoch without evaluations, 8 s" in str(check)


def test_a_figure_far_off_its_run_says_so_where_the_rows_agree(tmp_path: Path) -> None:
    """The warm-up of two epochs of 16, which are five times as slow, is in the run's time and in the rows."""
    path = epochs_log(tmp_path / "log.txt", evaluation_ms=0, last=16, idle_ms=0)
    text = path.read_text()
    for epoch in (1, 2):  # each takes 4 s more
        text = samples.moved(text, 4000, text.index("\n", text.index(f'"epoch_num": {epoch}}}')))
    path.write_text(text)
    result = score([read_record(path, devices=8)], protocols.find("window").skipping(2))
    [said] = [w.found for w in result.warnings if w.check == "ways_disagree"]
    assert said.startswith(
        "the figure, 1.28117e+06, is +50.0% off the whole run's: lines 7 to 37: run_start to run_stop"
    )


def test_a_slow_first_epoch_that_the_protocol_leaves_out_is_no_disagreement(tmp_path: Path) -> None:
    """As in many MLPerf logs: the first epoch of 16 takes 4 s, and all others 1 s."""
    path = epochs_log(tmp_path / "log.txt", evaluation_ms=0, last=16, idle_ms=0)
    text = path.read_text()
    path.write_text(samples.moved(text, 3000, text.index("\n", text.index('"epoch_num": 1}'))))
    result = score([read_record(path, devices=8)], protocols.find("window").skipping(1))
    assert result.value == pytest.approx(1_281_167)
    assert "ways_disagree" not in {warning.check for warning in result.warnings}


def test_one_epoch_whose_clock_leapt_is_held_to_the_printed_rates(tmp_path: Path, published_logs: Path) -> None:
    """An hour within one of 35 epochs: the figure would be a third, and most rates agree with their time."""
    text = (published_logs / "mlperf_v2.1_dgxa100_resnet" / "result_0.txt").read_text()
    lines = text.splitlines(keepends=True)
    [leap] = [at for at, line in enumerate(lines, 1) if '"epoch_start"' in line and '"epoch_num": 14}' in line]
    record = read(tmp_path, samples.moved(text, 3_600_000, len("".join(lines[:leap]))))
    with pytest.raises(InputError, match=r"two ways to it contradict each other: rate: .* the printed rates, "):
        score([record], protocols.find("window"))
    assert score([record], RUN_TIME).value > 60  # minutes do not depend on rates
    [check] = [check for check in read(tmp_path, text).checks if check.what == "rate"]
    assert check.agree and " 1 times the printed ones" in check.ways[1]


def test_mixed_software_math_modes_and_precisions(published_logs: Path) -> None:
    logged = read_record(published_logs / "paddleclas_v100_gpu8_fp32_bs256.log")  # it states no precision
    a = dataclasses.replace(logged, precision="fp32", math_mode="fp32")
    b = read_record(published_logs / "paddleclas_a100_gpu1_fp32_bs256.log")
    found = {warning.check: warning.found for warning in warnings.warn_of_mixed_settings([a, b])}
    assert found["mixed_math_mode"] == "math mode differs: fp32, tf32"
    assert "cudnn 8.1 and 8.2" in found["mixed_software"]
    assert not list(warnings.warn_of_mixed_settings([a, a]))
    c = dataclasses.replace(a, framework="PaddlePaddle 2.5.0")
    d = dataclasses.replace(a, framework="PaddlePaddle 2.6.2")
    assert "PaddlePaddle 2.5.0 and 2.6.2" in next(warnings.warn_of_mixed_settings([c, d])).found
    half = dataclasses.replace(a, precision="amp_o1")
    for other, found_text in ((a, "amp_o1, fp32"), (dataclasses.replace(a, precision=None), "amp_o1, not said")):
        [mixed] = warnings.warn_of_mixed_settings([other, half])
        assert (mixed.check, mixed.found) == ("mixed_precision", f"precision differs: {found_text}")
    named, unnamed = (dataclasses.replace(a, precision=precision) for precision in ("FP32", None))
    assert not list(warnings.warn_of_mixed_settings([named, unnamed]))  # the other may have run in FP32, too
    _, result, _ = command("score", b.file, "--protocol", "perf", "--devices", 1)
    assert "tf32" in [warning["rule"] for warning in result["warnings"]]


def test_problems_of_a_log_are_warnings(tmp_path: Path) -> None:
    """An option that the log contradicts, a run that computed nothing, a log that ends early."""
    text = samples.paddleseg(samples.run_of([0.5] * 200))
    null = '# {"environment": {"NULL_GPU": "nothing is computed"}}\n' + samples.mllog(samples.run_of([0.5] * 100))
    for log, options, rule, message in (
        (text, ["--devices", 2], "option_contradicts_log", "line 2: the log says devices 8, the options 2"),
        (null, [], "log_problem", "null GPUs, which compute nothing"),
        (text[: text.index("iter: 160/")] + "iter: 160/200, loss: 1", [], "truncated", "the log ends before its run"),
    ):
        code, result, _ = command("score", write(tmp_path, "a.log", log), "--protocol", "perf-seg", *options)
        [said] = [one["message"] for one in result["warnings"] if one["rule"] == rule]
        assert code == 0 and message in said
        if rule == "truncated":
            assert result["value"] == pytest.approx(512, rel=1e-3) and result["windows"] == 11


def test_outlying_runs() -> None:
    records = [record_of(noise(10)) for _ in range(6)]
    for values, outlying in (
        ([100, 101, 99, 100.5, 99.5, 80], True),
        ([100, 101, 99, 100.5, 99.5, 98], False),
        ([28.410, 28.639, 30.342, 28.748, 28.669], True),
        ([100, 100, 100], False),
        ([1, 2], False),
    ):
        found = [
            warning.check for warning in warnings.warn_of_outlying_run(records[: len(values)], values, "of any unit")
        ]
        assert found == ["outlying_run"] * outlying


@pytest.mark.parametrize(
    ("low", "high", "wide_interval"), [(98.1, 101.9, False), (97.5, 102.6, True), (100.0, 100.0, False)]
)
def test_an_interval_of_over_two_percent_each_way_is_warned_of(low: float, high: float, wide_interval: bool) -> None:
    assert bool(list(warnings.warn_if_interval_is_wide(100.0, (low, high)))) == wide_interval


def test_a_warning_of_an_interval_shows_the_digits_by_which_it_is_too_wide() -> None:
    [little] = warnings.warn_if_interval_is_wide(100.0, (97.9996, 102.0004))
    assert "interval is 2.0004% of the figure (over 2%)" in little.found
    [much] = warnings.warn_if_interval_is_wide(100.0, (90.0, 110.0))
    assert "interval is 10.0% of the figure (over 2%)" in much.found


@pytest.mark.parametrize(
    ("benchmark", "wanted"),
    [("resnet", SubmissionRuns(runs=5, dropped=1)), ("unet3d", SubmissionRuns(runs=40, dropped=4))],
)
def test_the_benchmark_decides_how_many_runs_make_a_figure(benchmark: str, wanted: SubmissionRuns) -> None:
    record = Record(file="a", sha256="", lines=1, format="mllog", benchmark=benchmark, run_start_s=1.0)
    found = with_runs_of_benchmark(protocols.find("mlperf"), [record])
    assert SubmissionRuns(runs=found.runs, dropped=found.dropped_runs) == wanted and not found.by_benchmark


def test_a_given_number_of_runs_leaves_the_benchmark_to_say_how_many_are_dropped() -> None:
    """As in mlperf-logging's result_summarizer.py: 4 at each end of unet3d, 1 of any other."""
    for benchmark, dropped in (("unet3d", 4), ("resnet", 1), ("one_of_ours", 1)):
        record = Record(file="a", sha256="", lines=1, format="mllog", benchmark=benchmark, run_start_s=1.0)
        found = with_runs_of_benchmark(protocols.find("mlperf").asking(10), [record])
        assert (found.runs, found.dropped_runs) == (10, dropped)

    record = Record(file="a", sha256="", lines=1, format="mllog", benchmark="unet3d", run_start_s=1.0)
    with pytest.raises(InputError, match="mlperf drops 8 runs of unet3d: --runs must be 9 or more"):
        with_runs_of_benchmark(protocols.find("mlperf").asking(8), [record])


def test_no_round_decides_where_rounds_ask_for_other_numbers_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log does not say its round, so the number of the newest one may be wrong."""
    record = Record(file="a", sha256="", lines=1, format="mllog", benchmark="resnet", run_start_s=1.0)

    def more_since_round_3(benchmark: str, ruleset: str) -> SubmissionRuns:
        return SubmissionRuns(runs=5 if ruleset < "3" else 10, dropped=1)

    monkeypatch.setattr(mlperf, "submission_runs", more_since_round_3)
    with pytest.raises(InputError, match=r"not its round, .* \(5 by 0.6.0, .* 10 by 6.1.0\); give --runs N"):
        with_runs_of_benchmark(protocols.find("mlperf"), [record])


@pytest.mark.parametrize(("benchmark", "says"), [(None, "names no benchmark"), ("gnmt3", "names benchmark 'gnmt3'")])
def test_no_run_time_of_a_benchmark_whose_number_of_runs_is_unknown(benchmark: str | None, says: str) -> None:
    record = Record(file="a", sha256="", lines=1, format="mllog", benchmark=benchmark, run_start_s=1.0)
    with pytest.raises(InputError, match=f"{says}.* give --runs N"):
        with_runs_of_benchmark(protocols.find("mlperf"), [record])
