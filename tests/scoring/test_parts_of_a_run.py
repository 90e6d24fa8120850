"""Logs of one run are not repeats: the parts of one that was rotated, wherever it was cut, and those of its ranks."""

import datetime
import itertools
import re
from pathlib import Path

import pytest

from scoring.figure import protocols
from scoring.figure.score import score
from scoring.importers import read_record
from scoring.record import InputError, Record
from tests.scoring import samples
from tests.scoring.samples import command, write


def records_of_parts(folder: Path, lines: list[str], cut: int) -> list[Record]:
    """The records of the two parts of a log that was cut behind so many lines."""
    earlier = write(folder, "log.1", "".join(lines[:cut]))
    later = write(folder, "log", "".join(lines[cut:]))
    return [read_record(path, devices=8, batch_per_device=32) for path in (earlier, later)]


def refuse_parts(records: list[Record]) -> None:
    for order in itertools.permutations(records):
        with pytest.raises(InputError, match=r"log goes on, on line \d+, where .*log\.1 ends: .*`cat`"):
            score(order, protocols.find("perf-seg"))


@pytest.mark.parametrize("name", ["paddleseg_v100_gpu1_fp32_bs8.log", "mlperf_v2.1_dgxa100_resnet/result_0.txt"])
def test_the_parts_of_a_rotated_log_are_no_repeats(tmp_path: Path, published_logs: Path, name: str) -> None:
    lines = (published_logs / name).read_text().splitlines(keepends=True)
    rows = [at for at, line in enumerate(lines, 1) if "[TRAIN]" in line or '"epoch_stop"' in line]
    refuse_parts(records_of_parts(tmp_path, lines, rows[12]))


@pytest.mark.parametrize(
    "name",
    [
        *("gluoncv", "nvidia_mxnet", "nvidia_paddle", "paddle18"),  # steps count anew in each epoch
        *("paddleclas_dygraph", "paddleclas_static"),
        *("mllog", "paddleseg"),  # steps count through the run
    ],
)
def test_a_log_that_was_cut_where_an_epoch_begins_is_in_parts(tmp_path: Path, name: str) -> None:
    run = samples.run_of(samples.steady(240), epoch_steps=120)
    text = samples.WRITERS[name](run)
    if name == "paddleseg":  # the made log says that all of it is epoch 1
        first_of_second = text.index("[TRAIN] epoch: 1, iter: 130/")
        text = text[:first_of_second] + text[first_of_second:].replace("epoch: 1,", "epoch: 2,")
    whole = read_record(write(tmp_path, "whole", text), devices=8, batch_per_device=32)
    first_epoch = whole.windows[0].epoch
    line_of_second = next(window.line for window in whole.windows if window.epoch != first_epoch)
    refuse_parts(records_of_parts(tmp_path, text.splitlines(keepends=True), line_of_second - 1))


@pytest.mark.parametrize("name", samples.WRITERS)
def test_a_log_that_was_cut_within_an_epoch_is_in_parts(tmp_path: Path, name: str) -> None:
    text = samples.WRITERS[name](samples.run_of(samples.steady(240), epoch_steps=120))
    whole = read_record(write(tmp_path, "whole", text), devices=8, batch_per_device=32)
    refuse_parts(records_of_parts(tmp_path, text.splitlines(keepends=True), whole.windows[5].line - 1))


def write_stopped_and_resumed(folder: Path, *, seed: int, seed_of_resumed: int, status: str | None) -> list[Path]:
    """The log of a run that ended so, and that of one that went on from a checkpoint, of step 200."""
    first = samples.mllog(samples.run_of([0.5] * 240), status=status, facts={"seed": seed})
    rest = samples.mllog(samples.run_of([0.6] * 240), facts={"seed": seed_of_resumed}, resumed=True)
    rest = re.sub(r'"step": (\d+)', lambda step: f'"step": {int(step[1]) + 200}', rest)
    return [write(folder, "result_0.txt", first), write(folder, "result_0.resumed_1.txt", rest)]


@pytest.mark.parametrize("status", ["aborted", None])
def test_a_stopped_run_and_its_rest_are_no_repeats(tmp_path: Path, status: str | None) -> None:
    """The rest has the seed of the run that wrote the checkpoint."""
    logs = write_stopped_and_resumed(tmp_path, seed=1234, seed_of_resumed=1234, status=status)
    for order in itertools.permutations(logs):
        exit_status, _, error = command("score", *order, "--protocol", "window")
        assert exit_status == 2
        assert re.search(r"resumed_1\.txt went on from a checkpoint of the run of .*result_0\.txt: ", error)


@pytest.mark.parametrize(("seed_of_resumed", "status"), [(1235, "aborted"), (1234, "success")])
def test_the_rest_of_another_run_is_a_repeat(tmp_path: Path, seed_of_resumed: int, status: str) -> None:
    """Of another seed, or of a run that has finished."""
    logs = write_stopped_and_resumed(tmp_path, seed=1234, seed_of_resumed=seed_of_resumed, status=status)
    _, result, _ = command("score", *logs, "--protocol", "window")
    assert result["runs"] == 2


@pytest.mark.parametrize("name", ["gluoncv", "keras", "paddleclas_static", "mllog"])
def test_runs_of_the_same_epochs_are_repeats(tmp_path: Path, name: str) -> None:
    """The first row of a run is where its first epoch begins, and no other run ends before it."""
    runs = [samples.run_of(samples.steady(240, seconds), epoch_steps=120) for seconds in (0.5, 0.6)]
    texts = [samples.WRITERS[name](run) for run in runs]
    records = [read_record(write(tmp_path, f"{at}.log", text)) for at, text in enumerate(texts)]
    assert not records[0].is_continuation_of(records[1])
    assert not records[1].is_continuation_of(records[0])


def test_a_oneflow_log_that_was_cut_before_the_row_of_step_0_is_in_parts(tmp_path: Path) -> None:
    """That row has the steps since the row before it, in the epoch before."""
    text = samples.oneflow(samples.run_of(samples.steady(240)))
    first_of_second = text.index("train: epoch 0, iter 120,")
    second = text[first_of_second:]
    for step in range(120, 241, 10):
        second = second.replace(f"epoch 0, iter {step},", f"epoch 1, iter {step - 120},")
    lines = [*text[:first_of_second].splitlines(keepends=True), *second.splitlines(keepends=True)]
    assert any("epoch 1, iter 0," in line for line in lines)
    refuse_parts(records_of_parts(tmp_path, lines, text[:first_of_second].count("\n")))


@pytest.mark.parametrize("name", samples.WRITERS)
def test_the_ends_of_two_runs_are_two_runs(tmp_path: Path, name: str) -> None:
    """Both starts are missing in the log: the rows of the first run are not passed over."""
    text = samples.WRITERS[name](samples.run_of(samples.steady(240), epoch_steps=120))
    first_row = read_record(write(tmp_path, "whole", text), devices=8, batch_per_device=32).windows[5].line
    end = "".join(text.splitlines(keepends=True)[first_row - 1 :])
    both = write(tmp_path, "ends", end + end)
    with pytest.raises(InputError, match=r"2 runs in one log \(1: lines 1 to \d+; 2: lines \d+ to \d+\)"):
        read_record(both, devices=8, batch_per_device=32, format=name)


def test_a_run_whose_start_is_missing_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    """The opening of the next run, before its first row, is not part of the run before it."""
    text = samples.mllog(samples.run_of(samples.steady(240), epoch_steps=120))
    lines = text.splitlines(keepends=True)
    first_row = read_record(write(tmp_path, "whole", text)).windows[5].line
    both = write(tmp_path, "both", "".join(lines[first_row - 1 :]) + text)
    line_of_end = len(lines) - first_row + 1
    with pytest.raises(InputError, match=rf"1: lines 1 to {line_of_end}; 2: lines {line_of_end + 1} to"):
        read_record(both)


@pytest.mark.parametrize("name", samples.WRITERS)
def test_a_copy_of_an_unfinished_log_is_no_second_run(tmp_path: Path, name: str) -> None:
    """Nor is a copy that a launcher's labels or Windows' line ends made another text of."""
    text = samples.WRITERS[name](samples.run_of(samples.steady(240), epoch_steps=120))
    whole = read_record(write(tmp_path, "whole.log", text), devices=8, batch_per_device=32)
    lines = text.splitlines(keepends=True)
    unfinished = "".join(lines[: whole.windows[8].line])
    labelled = "".join(f"0: {line.rstrip()}\r\n" for line in lines)
    for other_text in (unfinished, labelled):
        other = read_record(write(tmp_path, "other.log", other_text), devices=8, batch_per_device=32)
        for order in itertools.permutations([whole, other]):
            with pytest.raises(InputError, match="are of the same run: one run counts once"):
                score(order, protocols.find("perf-seg"))


def test_rows_that_may_be_alike_by_chance_are_not_called_one_run(tmp_path: Path) -> None:
    """Two rows, and rows that print one figure without a stamp, are not a sign."""

    def record_of(name: str, rates: list[float], loss: float) -> Record:
        row = "train: epoch 0, iter {step}, loss: {loss}, top_1: 0.0, top_k: 0.0, samples/s: {rate:.3f}\n"
        rows = [row.format(step=20 * at, loss=loss, rate=rate) for at, rate in enumerate(rates, 1)]
        return read_record(write(tmp_path, name, "model = resnet50\n" + "".join(rows)))

    one = record_of("one", [100.0, 101.0], 6.9)
    assert not one.is_of_same_run(record_of("longer", [100.0, 101.0, 102.0], 6.9))
    flat = record_of("flat", [100.0] * 9, 6.9)
    assert not flat.is_of_same_run(record_of("flat_too", [100.0] * 8, 6.9))
    three = record_of("three", [100.0, 101.0, 102.0], 6.9)
    assert three.is_of_same_run(record_of("four", [100.0, 101.0, 102.0, 103.0], 6.9))
    assert not three.is_of_same_run(record_of("other_loss", [100.0, 101.0, 102.0, 103.0], 6.8))


def test_the_standard_output_and_the_json_of_one_run_are_no_repeats(tmp_path: Path) -> None:
    """DLLogger gives a row one time stamp for both, but rounds the figures of its standard output."""
    run = samples.run_of(samples.steady(240))
    logs = [write(tmp_path, "log", samples.nvidia_pytorch(run)), write(tmp_path, "json", samples.nvidia_json(run))]
    records = [read_record(log) for log in logs]
    assert records[0].windows[1].printed_rate != records[1].windows[1].printed_rate
    status, _, error = command("score", *logs, "--protocol", "window")
    assert status == 2 and "are of the same run: one run counts once" in error
    later = samples.nvidia_json(run).replace('"datetime": "2023-07-28', '"datetime": "2023-07-29')
    assert not records[0].is_of_same_run(read_record(write(tmp_path, "later", later)))


@pytest.mark.parametrize(
    "ends", [[0, 100, 200, 225, 325], [0, 100, 200, 300, 325], [0, 25, 125, 225, 325], [0, 100, 125, 150, 250]]
)
def test_a_keras_log_is_in_parts_wherever_it_was_cut_and_a_short_row_stands(tmp_path: Path, ends: list[int]) -> None:
    """A row is short at the end of an epoch; the part behind the cut may hold a single row."""
    lines = []
    for seconds, (begin, end) in enumerate(itertools.pairwise(ends), 1):
        history = (
            f"TimeHistory: {seconds}.00 seconds, {100 + seconds}.00 examples/second between steps {begin} and {end}"
        )
        lines.append(f"I0826 16:01:52.940788 140244211521280 keras_utils.py:133] {history}, resnet50\n")
    for cut in range(1, len(lines)):
        refuse_parts(records_of_parts(tmp_path, lines, cut))


@pytest.mark.parametrize(("behind_s", "is_warned"), [(0, True), (1, True), (30, False)])
def test_logs_that_stay_in_step_may_be_of_ranks_of_one_run(tmp_path: Path, behind_s: int, is_warned: bool) -> None:
    first = samples.paddleseg(samples.run_of([0.5] * 600))
    second = re.sub("reader_cost: 0.0", "reader_cost: 0.1", first)  # another rank waits longer
    second = re.sub(
        r"(\d\d:\d\d:\d\d) \[INFO\]\t\[TRAIN\]", lambda row: f"{_later(row[1], behind_s)} [INFO]\t[TRAIN]", second
    )
    logs = [samples.write(tmp_path, "workerlog.0", first), samples.write(tmp_path, "workerlog.1", second)]
    _, result, _ = command("score", *logs, "--protocol", "window")
    warnings = [warning for warning in result["warnings"] if warning["rule"] == "runs_in_step"]
    assert len(warnings) == is_warned
    assert all(warning["file"] == str(logs[1]) for warning in warnings)


def _later(time_of_day: str, seconds: int) -> str:
    later = datetime.datetime.strptime(time_of_day, "%H:%M:%S") + datetime.timedelta(seconds=seconds)
    return f"{later:%H:%M:%S}"


@pytest.mark.parametrize("protocol", ["window", "fleetx", "dlperf"])
def test_a_resumed_run_warms_up_anew(tmp_path: Path, protocol: str) -> None:
    """Its steps count from those before: at step 1001 no protocol's warm-up of 20 steps was over."""
    text = samples.mllog(samples.run_of([2.0] * 20 + [0.5] * 100)).replace('"resumed": false', '"resumed": true')
    text = re.sub(r'"step": (\d+)', lambda step: f'"step": {int(step[1]) + 1000}', text)
    log = samples.write(tmp_path, "a.txt", text)
    _, result, _ = samples.command("score", log, "--protocol", protocol, "--runs", 1)
    assert result["value"] == pytest.approx(512, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("keras", r"(?<=steps )\d+|(?<=\d and )\d+(?=\n)"),  # its rows print the step at which they begin, too
        ("paddleseg", r"(?<=iter: )\d+|(?<=/)\d+(?=, loss)"),
        ("mmseg", r"(?<=Iter \[)\d+|(?<=/)\d+(?=\])"),
    ],
)
def test_a_resumed_run_of_other_programs_warms_up_anew(tmp_path: Path, name: str, number: str) -> None:
    text = samples.WRITERS[name](samples.run_of([2.0] * 20 + [0.5] * 100))
    later = re.sub(number, lambda found: str(int(found[0]) + 1000), text)
    assert later != text
    for printed in (text, later):
        log = samples.write(tmp_path, "a.log", printed)
        _, result, _ = samples.command("score", log, "--protocol", "window")
        assert result["value"] == pytest.approx(512, rel=1e-3)


def test_a_oneflow_run_that_failed_after_a_row_is_a_run_of_its_own(tmp_path: Path) -> None:
    """The next start, on other devices, prints the row of the same step again."""
    failed = samples.oneflow(samples.run_of([0.5] * 10, devices=8)).rsplit("validation", 1)[0]
    trained = samples.oneflow(samples.run_of([0.5] * 240, devices=4))
    record = read_record(samples.write(tmp_path, "a.log", failed + trained), segment=2)
    assert (record.devices, len(record.windows)) == (4, 24)
