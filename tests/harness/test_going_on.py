"""Runs that were killed or stopped, and went on from their checkpoints."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from harness.hooks import checkpoint_file
from tests import jobs
from tests.harness import small


def steps_of(log: Path) -> list[int]:
    return [event["metadata"]["step"] for event in jobs.mllog(log) if event["key"] == "step_window"]


def whole_losses(log: Path) -> list[float]:
    """Losses of a log whose last line may be cut."""
    text = log.read_text() if log.is_file() else ""
    return [json.loads(line[9:])["value"]["loss"] for line in text.split("\n")[:-1] if '"step_window"' in line]


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_kill_9_and_going_on_is_one_straight_run(tmp_path):
    data = small.data_set(tmp_path / "data")
    straight = tmp_path / "straight" / "result_0.txt"
    done = small.train(straight, data, CHECKPOINT_EPOCHS=1)
    assert done.returncode == 1 and "below the target" in done.stderr, done.stderr
    last = straight.with_name("result_0.checkpoints") / "step_000000020.safetensors"
    assert f"the last good checkpoint is {last}" in done.stderr
    assert "goes on" not in done.stderr, "nothing goes on from a run that has done all of its epochs"
    checkpoint_file.read(last)  # the end did not overtake its writing
    done = small.train(straight.with_name("result_0.resumed_1.txt"), data, RESUME="auto")
    done_all = f"{last}: its run has done all of its 2 epochs: set RESUME=no, and move it and the log away"
    assert done.returncode == 2 and done_all in done.stderr

    first, second = tmp_path / "killed" / "result_0.txt", tmp_path / "killed" / "result_0.resumed_1.txt"
    process = small.start(first, data, CHECKPOINT_EPOCHS=1)
    folder = tmp_path / "killed" / "result_0.checkpoints"
    jobs.until(lambda: len(whole_losses(first)) >= 12 and checkpoint_file.newest_first(folder), process)
    mpirun = psutil.Process(process.pid)
    jobs.kill_at_once(lambda: [mpirun, *mpirun.children(recursive=True)])  # as when a node loses its power
    process.communicate()
    assert [p.name for p in checkpoint_file.newest_first(folder)] == ["step_000000010.safetensors"]
    done = small.train(second, data, RESUME="auto", SEED=-1)
    assert done.returncode == 1 and "below the target" in done.stderr, done.stderr
    assert steps_of(second) == list(range(11, 21))
    assert whole_losses(first)[:10] + jobs.losses(second) == pytest.approx(jobs.losses(straight), rel=1e-6)
    assert jobs.values(second, "eval_accuracy") == jobs.values(straight, "eval_accuracy")[1:]
    assert jobs.values(second, "run_summary")[0]["resumed"] and not jobs.values(straight, "run_summary")[0]["resumed"]
    status, checked = jobs.checked(second)
    assert status == 1
    assert "run-mode" in {f["rule"] for f in checked["findings"]}


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_signal_saves_in_the_middle_of_an_epoch_and_fewer_ranks_go_on(tmp_path):
    data = small.data_set(tmp_path / "data")
    first, second, third = (tmp_path / name / "result_0.txt" for name in ("stopped", "same", "fewer"))
    process = small.start(first, data)
    jobs.until(lambda: len(whole_losses(first)) >= 13, process)
    process.send_signal(signal.SIGUSR1)  # as launch/trials.sh does
    _, said = process.communicate(timeout=jobs.LIMIT_S)
    (saved,) = checkpoint_file.newest_first(first.with_name("result_0.checkpoints"))
    step = len(jobs.losses(first))
    assert process.returncode != 0 and saved.name == f"step_{step:09d}.safetensors"
    good = f"the last good checkpoint is {saved}, from which RESUME=auto goes on"
    assert f"error: stopped by signal TERM after step {step}; {good}" in said
    assert jobs.values(first, "abort_reason") == [f"stopped by signal TERM after step {step}; {good}"]
    assert jobs.values(first, "checkpoint")[0]["step"] == step

    resume = {"RESUME": "auto", "CHECKPOINT_DIR": str(saved.parent)}
    damaged = saved.with_name("step_000000021.safetensors")
    damaged.write_bytes(saved.read_bytes()[:-1])
    done = small.train(second, data, **resume)
    assert done.returncode == 1
    skipped = f"warning: {damaged}: damaged, its checksum is wrong: skipped\n"
    assert skipped in done.stdout and skipped in second.read_text(), "who looks at the terminal or the log learns of it"
    damaged.unlink()
    assert steps_of(second) == list(range(step + 1, 21))
    done = small.train(third, data, **resume, DATA="synthetic")
    assert done.returncode == 2 and "of another run (data 'real' there, 'synthetic' here)" in done.stderr, done.stderr
    with Image.open(data / "train/07.jpeg") as image:
        image.save(data / "train/07.jpeg", quality=10)  # as of another data set, which is as large
    done = small.train(third, data, ranks=1, **resume)
    assert done.returncode == 2 and "set BATCHSIZE=4 for 1 ranks" in done.stderr
    assert small.train(third, data, ranks=1, **resume, BATCHSIZE=4, CHECKPOINT_MINUTES=0).returncode == 1
    assert steps_of(third) == list(range(step + 1, 21))
    note = (
        f"warning: {saved}: its run trained on other files: names, sizes or labels differ from those of this data set\n"
    )
    assert note in third.read_text() and note not in second.read_text()
    assert all(np.isfinite(jobs.losses(third)))


IMPATIENT = """
import sys
from harness import __main__ as rank
from harness.hooks import checkpoint
checkpoint.PATIENCE_S = 0.0
sys.exit(rank.main())
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_second_job_is_refused_the_checkpoints_of_one_that_runs(tmp_path: Path) -> None:
    """Both have RESUME=auto. The second does not wait for the first as long as a job of users would."""
    settings = {**small.TRAINING, "MAX_EPOCHS": 1000, "RESUME": "auto", "DATADIR": small.data_set(tmp_path / "data")}
    log, second_log = tmp_path / "result_0.txt", tmp_path / "result_0.resumed_1.txt"
    first = jobs.on_ranks(2, "-m", "harness", start=jobs.begin, cwd=small.checkout(), RESULT_FILE=log, **settings)
    jobs.until(lambda: len(whole_losses(log)) >= 2, first)
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    script = str(tmp_path / "impatient.py")
    second = jobs.on_ranks(2, script, cwd=small.checkout(), RESULT_FILE=second_log, **settings)
    folder = tmp_path / "result_0.checkpoints"
    fix = "wait for its end, set CHECKPOINT_DIR, or remove .lock there if no run is at work"
    assert second.returncode == 2, second.stderr
    assert f"error: {folder}: another run writes its checkpoints there: {fix}" in second.stderr
    first.send_signal(signal.SIGUSR1)  # as launch/trials.sh does
    _, said = first.communicate(timeout=jobs.LIMIT_S)
    assert "RESUME=auto goes on" in said, "the first one has gone on meanwhile, and saves its state"
    assert [path.suffix for path in folder.iterdir()] == [".safetensors"]


STOPS = 10
# Rules of this project that a log breaks whose first epochs are in others.
LATER_EPOCHS = ("event-order", "epochs-counted", "epoch-time", "throughput-agrees")


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_ten_stops_in_a_row_are_one_straight_run(tmp_path: Path) -> None:
    """By the user's command, stopped soon after its second step each time; BN statistics are each rank's own."""
    data = small.data_set(tmp_path / "data")
    settings = {**small.TRAINING, "MAX_EPOCHS": 10, "DATADIR": data}
    straight = tmp_path / "straight"
    done = jobs.run_and_time(cwd=small.checkout(), **settings, LOGDIR=straight)
    assert done.returncode == 1 and "below the target" in done.stderr, done.stderr

    folder = tmp_path / "stopped" / "CPU/rn50"
    settings |= {"LOGDIR": tmp_path / "stopped", "RESUME": "auto"}
    logs = [folder / "result_0.txt", *(folder / f"result_0.resumed_{number}.txt" for number in range(1, STOPS + 1))]
    for log in logs[:-1]:
        job = jobs.run_and_time(start=jobs.begin, cwd=small.checkout(), **settings)
        # The first window is when the ranks begin to heed signals.
        jobs.until(lambda: jobs.text(log).count("step_window") >= 2, job, every_s=0.01)  # noqa: B023  called at once
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=jobs.LIMIT_S)
        assert job.returncode == 143 and "RESUME=auto goes on" in said, said
    done = jobs.run_and_time(cwd=small.checkout(), **settings)
    assert done.returncode == 1 and "below the target" in done.stderr, done.stderr

    whole = straight / "CPU/rn50/result_0.txt"
    losses = []
    evaluations = []
    for log in logs:
        losses += jobs.losses(log)
        evaluations += jobs.values(log, "eval_accuracy")
    assert losses == pytest.approx(jobs.losses(whole), rel=1e-6)
    assert evaluations == jobs.values(whole, "eval_accuracy")
    _, of_straight = jobs.checked(whole)
    _, of_last = jobs.checked(logs[-1])
    assert of_last["official"] == "pass", "that it is not a result is this project's rule"
    rules_of = [{finding["rule"] for finding in report["findings"]} for report in (of_straight, of_last)]
    only_of_last = rules_of[1] - rules_of[0]
    assert "run-mode" in only_of_last
    assert only_of_last <= {"run-mode", *LATER_EPOCHS}


STEP_S = 12


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_job_whose_step_takes_longer_than_a_stopped_one_usually_has_saves_too(tmp_path: Path) -> None:
    loop = (jobs.REPOSITORY / "harness" / "loop.py").read_text()
    sends_rate = "            self.step.ensure_rate(step)\n"
    assert loop.count(sends_rate) == 1
    slow = loop.replace(sends_rate, f"{sends_rate}            time.sleep({STEP_S})\n")
    checkout = jobs.checkout(tmp_path / "checkout", "harness", loop=slow)
    (checkout / "paddle_rn50").unlink()
    (checkout / "paddle_rn50").symlink_to(small.checkout() / "paddle_rn50")
    settings = {**small.TRAINING, "DGXNGPU": 1, "DATADIR": small.data_set(tmp_path / "data"), "LOGDIR": tmp_path}
    log = tmp_path / "CPU/rn50/result_0.txt"
    job = jobs.run_and_time(start=jobs.begin, cwd=checkout, **settings)
    jobs.until(lambda: jobs.trains(log), job)
    time.sleep(1)  # the ranks begin to heed signals at the end of this window
    job.send_signal(signal.SIGTERM)
    _, said = job.communicate(timeout=jobs.LIMIT_S)
    saved = log.with_name("result_0.checkpoints") / "step_000000002.safetensors"
    assert job.returncode == 143, said
    assert f"stopped by signal TERM after step 2; the last good checkpoint is {saved}" in jobs.abort_reason(log)
    checkpoint_file.read(saved)
