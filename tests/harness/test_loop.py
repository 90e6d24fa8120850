"""A run's steps: the samples that they see, the rates and the state of their program, and each rank's own times."""

import itertools
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from mpi4py import MPI
from paddle import static

from harness import loader, loop, sampling, state, train
from harness.job import LAST_SEED
from harness.progress import Progress, Timing
from harness.ranks import Ranks
from paddle_rn50 import data
from program.optimizers import Schedule
from runlog import schema
from runlog.schema import RankTimes
from runlog.writer import RunLog, open_log
from scoring.figure import window_warnings
from scoring.importers import read_record
from scoring.record import Record, Window
from tests import jobs, make_log
from tests.harness import small
from tests.program import programs
from tests.scoring.samples import command

# ---- samples: at any rank count, in every epoch, each exactly once


def epoch_of(samples: int, *, batch: int, ranks: int, seed: int, epoch: int) -> np.ndarray:
    """[steps, global batch] sample numbers of one epoch over all ranks."""
    steps = sampling.steps_per_epoch(samples, batch * ranks)
    plans = [
        sampling.training_plan(samples, batch=batch, rank=rank, ranks=ranks, seed=seed, epoch=epoch)
        for rank in range(ranks)
    ]
    return np.array([np.concatenate([next(plan)[1] for plan in plans]) for _ in range(steps)])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_step_sees_the_same_samples_at_any_rank_count(ranks: int) -> None:
    one = epoch_of(103, batch=16, ranks=1, seed=5, epoch=3)
    many = epoch_of(103, batch=16 // ranks, ranks=ranks, seed=5, epoch=3)
    assert np.array_equal(one, many)


def test_an_epoch_sees_no_sample_twice_and_drops_the_last_partial_batch() -> None:
    seen = epoch_of(103, batch=5, ranks=4, seed=1, epoch=1)
    assert seen.shape == (5, 20)
    assert len(np.unique(seen)) == 100


def test_order_depends_on_seed_and_epoch() -> None:
    orders = [epoch_of(64, batch=8, ranks=1, seed=s, epoch=e).ravel() for s, e in ((1, 1), (1, 2), (2, 1))]
    for a, b in itertools.combinations(orders, 2):
        assert not np.array_equal(a, b)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_the_largest_seed_that_a_job_takes_trains(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    settings = {**jobs.TINY, "SEED": LAST_SEED, "BATCHSIZE": 2, "DATADIR": small.data_set(tmp_path / "data")}
    done = jobs.on_ranks(2, "-m", "harness", cwd=small.checkout(), RESULT_FILE=log, **settings)
    assert done.returncode == 0, done.stderr
    assert jobs.values(log, "seed") == [LAST_SEED] and np.isfinite(jobs.losses(log)).all()


@pytest.mark.parametrize("seed", [0, 7, LAST_SEED - 2, LAST_SEED])
def test_each_rank_draws_first_weights_by_a_seed_that_paddle_takes(seed: int) -> None:
    seeds = {train.seed_of_rank(seed, rank) for rank in range(64)}
    assert len(seeds) == 64 and min(seeds) >= 1 and max(seeds) <= LAST_SEED


@pytest.mark.parametrize(("epoch", "first_step"), [(2, 3), (1, 6)], ids=["within an epoch", "after its last step"])
def test_a_plan_goes_on_where_another_stopped(epoch: int, first_step: int) -> None:
    whole = sampling.training_plan(50, batch=4, rank=1, ranks=2, seed=9)
    rest = sampling.training_plan(50, batch=4, rank=1, ranks=2, seed=9, epoch=epoch, first_step=first_step)
    done = 6 * (epoch - 1) + first_step
    skipped = itertools.islice(whole, done, done + 8)
    for (wanted, ids, _), (found, other_ids, _) in zip(skipped, rest, strict=False):
        assert wanted == found
        assert np.array_equal(ids, other_ids)


@pytest.mark.parametrize("samples", [1, 7, 360, 361])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("batch", [1, 7, 16])
def test_an_evaluation_sees_every_sample_exactly_once(samples: int, ranks: int, batch: int) -> None:
    steps = sampling.evaluation_steps(samples, batch * ranks)
    counts = np.zeros(samples, dtype=int)
    for rank in range(ranks):
        plan = sampling.evaluation_plan(samples, batch=batch, rank=rank, ranks=ranks)
        for _ in range(2):  # and again in the next evaluation
            for _, ids, valid in itertools.islice(plan, steps):
                assert ids.shape == valid.shape == (batch,)
                np.add.at(counts, ids[valid], 1)
    assert (counts == 2).all()


def test_random_numbers_are_uniform_and_belong_to_the_sample() -> None:
    ids = np.arange(4000)
    u = sampling.uniform(3, 1, ids, 5)
    assert u.shape == (4000, 5)
    assert u.min() >= 0
    assert u.max() < 1
    # 20,000 draws: each of ten bins holds 2,000 with a standard deviation of 42; five of these is one in 10^6.
    assert abs(np.histogram(u, bins=10, range=(0, 1))[0] - 2000).max() < 5 * 42
    assert abs(np.corrcoef(u.T)[np.triu_indices(5, 1)]).max() < 5 / np.sqrt(4000)
    assert np.array_equal(sampling.uniform(3, 1, ids[100:110], 5), u[100:110])
    assert not np.array_equal(sampling.uniform(3, 2, ids, 5), u)


# ---- rates


# Rates 0.05, 0.1, 0.1, 0.1, 0.01, 0.01, ...
SCHEDULE = Schedule(kind="piecewise", base=0.1, warmup_steps=2, total_steps=9, boundaries=(4,), factors=(0.1,))


def test_a_rate_is_copied_to_the_device_where_it_changes_and_at_no_other_step(tmp_path: Path) -> None:
    training = programs.build(schedule=SCHEDULE)
    executor, rate = static.Executor(paddle.CPUPlace()), training.schedule
    fed = loader.Batch(**programs.images(0, training), ids=np.arange(programs.BATCH))
    of_program: list[float] = []  # the rate that each step took

    def of_device() -> np.ndarray:
        return np.array(static.global_scope().find_var(rate._var_name).get_tensor())

    def batches() -> Iterator[loader.Batch]:
        while True:
            yield fed
            of_program.append(of_device().item())

    with (
        static.scope_guard(static.Scope()),
        mock.patch.object(loop, "WATCHDOG", autospec=True),
        mock.patch.object(type(rate), "send", autospec=True, side_effect=type(rate).send) as sent,
    ):
        executor.run(training.startup)
        shape = of_device().shape
        trainer = loop.Trainer(
            step=loop.LaunchedStep(executor, training),
            global_batch=programs.BATCH,
            print_steps=3,
            ranks=Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here"),
            log=RunLog(tmp_path / "log.txt"),
            progress=Progress("none", 0),
        )
        source = batches()
        trainer.run(source, steps=3, epoch=1, done=0, phase="train")
        trainer.run(source, steps=4, epoch=2, done=3, phase="train")
        next(source)
        assert of_device().shape == shape, "a checkpoint has it so"
    np.testing.assert_allclose(of_program, [SCHEDULE(step) for step in range(7)], rtol=1e-6)
    assert sent.call_count == 2 + 2, "of an epoch its first step, and each with another rate than the one before"
    assert not any(hasattr(program, "lr_scheduler") for program in training.update), "Paddle copies it as well"


def test_a_window_whose_loss_is_zero_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = mock.create_autospec(loop.LaunchedStep, instance=True)
    step.executor = static.Executor(paddle.CPUPlace())
    with open_log(tmp_path / "log.txt") as log:
        trainer = loop.Trainer(
            step=step,
            global_batch=6,
            print_steps=1,
            ranks=Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here"),
            log=log,
            progress=Progress("plain", 9),
        )
        for number, loss in enumerate((1e-30, 0.0, 0.0), 7):
            trainer._report(Timing(steps=1, images=6, time_s=0.5), loss, step=number, epoch=1, phase="train")
    warning = "warning: the loss is 0: all is learned, or the labels hold nothing to learn"
    for text in (capsys.readouterr().out, (tmp_path / "log.txt").read_text()):
        assert text.count("warning: ") == 1 and warning in text


# ---- state: weights from outside, and what the ranks share


def values(main: static.Program) -> dict[str, np.ndarray]:
    """The state as FP32."""
    return {name: np.array(tensor).astype(np.float32) for name, tensor in state.tensors(main)}


@pytest.mark.parametrize(("name", "rounding", "masters"), [("fp32", 0, 0), ("amp_o1", 0, 0), ("amp_o2", 2.0**-11, 17)])
def test_weights_from_outside_reach_each_parameter_and_its_master(name: str, rounding: float, masters: int) -> None:
    built = programs.build(name=name, device="cpu" if name == "fp32" else "gpu")
    with static.scope_guard(static.Scope()):
        static.Executor(paddle.CPUPlace()).run(built.startup)
        rng = np.random.default_rng(0)
        before = values(built.main)
        weights = {
            p.name: rng.standard_normal(p.shape).astype(np.float32) for p in built.main.all_parameters() if p.trainable
        }
        state.set_weights(built.main, weights)
        after = values(built.main)
    seen = 0
    for entry, value in after.items():
        parameter = re.sub(r"_fp32_master_\d+$", "", entry)
        is_master = parameter != entry
        if parameter in weights:
            seen += is_master
            exact = is_master or parameter.endswith(("bn.w", "bn.b"))  # normalizations stay FP32
            np.testing.assert_allclose(value, weights[parameter], rtol=0 if exact else rounding, atol=1e-7)
        else:
            np.testing.assert_array_equal(value, before[entry])
    assert seen == masters
    with pytest.raises(AssertionError, match="no_such_layer"):
        state.set_weights(built.main, {"no_such_layer": np.zeros(1, np.float32)})


def test_ranks_share_the_state_that_each_of_them_has() -> None:
    """Paddle's automatic mode gives each rank a part of the state: a broadcast of the whole would never meet."""
    built = programs.build()
    with static.scope_guard(static.Scope()):
        static.Executor(paddle.CPUPlace()).run(built.startup)
        mine = set(values(built.main))
        theirs = {name for name in mine if "stem" not in name}
        assert theirs < mine
        comm = mock.create_autospec(MPI.Comm, instance=True)
        comm.allgather.side_effect = lambda names: [names, theirs]
        ranks = Ranks(comm=comm, rank=0, size=2, local_rank=0, node="node0")
        state.broadcast_parameters(built.main, ranks)
        assert comm.Bcast.call_count == len(theirs)


def test_an_evaluation_is_of_the_mean_of_the_ranks_statistics() -> None:
    """Each follows its own rank's samples; nothing else of the state is another rank's."""
    built = programs.build()
    with static.scope_guard(static.Scope()):
        static.Executor(paddle.CPUPlace()).run(built.startup)
        before, own = values(built.main), state.statistics_names(built.main)
        assert len(own) == 2 * built.kinds("batch_norm")[0]
        comm = mock.create_autospec(MPI.Comm, instance=True)
        comm.allreduce.side_effect = lambda mine: mine + (mine + 3)  # the other rank's are greater by 3
        state.average_statistics(built.main, Ranks(comm=comm, rank=0, size=2, local_rank=0, node="node0"))
        for name, value in values(built.main).items():
            np.testing.assert_allclose(value, before[name] + (1.5 if name in own else 0), err_msg=name)


def test_a_synthetic_batch_lies_on_the_device() -> None:
    made = data.synthetic(data.ImageFormat(size=8), batch=2, classes=10, seed=1)
    kept = loader.resident(made, paddle.CPUPlace())
    for name in ("image", "label", "valid"):
        assert isinstance(getattr(kept, name), paddle.base.core.LoDTensor)
        np.testing.assert_array_equal(np.array(getattr(kept, name)), getattr(made, name))


# ---- times: a log of real ranks names the slow one and why, and ranks that are alike give no name


SLOW = """
                if self.ranks.rank == 1:
                    until = time.thread_time() + time.perf_counter() - ready
                    while time.thread_time() < until:
                        pass
"""


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_the_rank_that_computes_longer_and_the_one_that_waits_are_named(tmp_path: Path) -> None:
    """Rank 1 computes twice as long; rank 0 waits a quarter of a step for each batch, however busy the machine."""
    loop = (jobs.REPOSITORY / "harness" / "loop.py").read_text()
    step, wait = (
        "            for hook in self.hooks:\n                hook.step_ends(",
        "            batch = next(batches)\n",
    )
    assert loop.count(step) == loop.count(wait) == 1
    loop = loop.replace(step, SLOW.replace("\n    ", "\n") + step)
    loop = loop.replace(
        wait, wait + "            time.sleep(total.time_s / max(4 * total.steps, 1) * (self.ranks.rank == 0))\n"
    )
    checkout, log = tmp_path / "checkout", tmp_path / "log.txt"
    jobs.checkout(checkout, room="harness", loop=loop)
    (checkout / "paddle_rn50").unlink()
    (checkout / "paddle_rn50").symlink_to(small.checkout() / "paddle_rn50")
    settings = jobs.TINY | {"MEASURED_STEPS": "40", "THREADS": "1"}
    done = jobs.on_ranks(2, "-m", "harness", cwd=checkout, RESULT_FILE=log, BATCHSIZE=2, **settings)
    assert done.returncode == 0, done.stderr
    status, score, _ = command("score", log, "--protocol", "window")
    found = [one["message"] for one in score["warnings"] if one["rule"] == "straggler"]
    host = socket.gethostname()
    assert status == 0
    assert any(message.startswith(f"rank 0 on {host} waits for its input ") for message in found), found
    assert any(message.startswith(f"rank 1 on {host} computes ") for message in found), found


def test_the_median_of_an_even_number_of_ranks_is_the_lower_of_two_in_the_middle(tmp_path: Path) -> None:
    """By hand: 1, 2, 3 and 4 s are the times in ascending order, so 2 s is the lower one; rank 2 took 4 s."""
    nodes = ("n0", "n0", "n1", "n1")
    with open_log(tmp_path / "log.txt") as log:
        trainer = loop.Trainer(
            step=mock.create_autospec(loop.LaunchedStep, instance=True),
            global_batch=4,
            print_steps=1,
            ranks=Ranks(comm=MPI.COMM_SELF, rank=0, size=4, local_rank=0, node="n0", nodes=nodes),
            log=log,
            progress=Progress("none", 0),
        )
    assert trainer._spread("compute", np.array([3.0, 1.0, 4.0, 2.0])) == {
        "compute_least_s": 1.0,
        "compute_median_s": 2.0,
        "compute_most_s": 4.0,
        "compute_rank": 2,
        "compute_host": "n1",
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Record:
    path = tmp_path_factory.mktemp("log") / "result.txt"
    path.write_text(make_log.run())
    return read_record(path)


def rank_times(values: Sequence[Any]) -> RankTimes:
    """Those of a window, in the order of the fields."""
    named_values: dict[str, Any] = dict(zip(RankTimes._fields, values, strict=True))
    return RankTimes(**named_values)


def of_ranks(run: Record, draw: np.random.Generator, ranks: int, slow: float = 0.0) -> Record:
    """A run of ranks whose times scatter by 2 % and are correlated by 0.6; rank 3 takes `slow` more."""
    noise = draw.standard_normal((60, ranks))
    for at in range(1, len(noise)):
        noise[at] = 0.6 * noise[at - 1] + 0.8 * noise[at]
    times = 1 + 0.02 * noise[20:]
    times[:, 3] += slow
    rows = []
    for row in times:
        slowest = int(row.argmax())
        input_s = (0.0, 0.0, 0.0, 0, "host0")
        compute_s = (float(row.min()), float(np.sort(row)[(ranks - 1) // 2]), float(row.max()))
        values = (*input_s, *compute_s, slowest, f"host{slowest}")
        rows.append(replace(run.windows[0], rank_times=rank_times(values), seconds=float(row.max())))
    return replace(run, devices=ranks, windows=tuple(rows))


def named(one: Record) -> list[str]:
    return [w.found for w in window_warnings.warn_about_windows(one, one.windows, False) if w.check == "straggler"]


@pytest.mark.parametrize("ranks", [4, 8, 256])
def test_ranks_that_are_alike_give_no_name_and_a_slow_one_its_own(ranks: int, run: Record) -> None:
    """400 runs each; at most the stated chance of 0.1 % is too rare to be seen here, so none may have a name."""
    draw = np.random.default_rng(7)
    assert sum(bool(named(of_ranks(run, draw, ranks))) for _ in range(400)) == 0
    found = [named(of_ranks(run, draw, ranks, slow=0.1)) for _ in range(50)]
    assert all(len(one) == 1 and one[0].startswith("rank 3 on host3 computes ") for one in found)


def test_a_rank_that_moves_to_another_host_is_another_rank(run: Record) -> None:
    """Rank 3 is the slowest in all windows: in most of them on host0, 10 % behind, and in the others on host1."""

    def window_on(host: str, slowest_s: float) -> Window:
        values = (0.0, 0.0, 0.0, 0, "host0", 0.9, 1.0, slowest_s, 3, host)
        return replace(run.windows[0], rank_times=rank_times(values), seconds=1.0)

    windows = (*[window_on("host0", 1.1)] * 21, *[window_on("host1", 1.8)] * 19)
    [found] = named(replace(run, devices=256, windows=windows))
    assert found.startswith("rank 3 on host0 computes 10.0% ")
    assert "slowest in 21 of 40 windows" in found


def test_a_window_is_shown_with_its_rate_its_wait_and_the_time_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """60 of 100 steps are left, at 10 steps in 5 s."""
    window = Timing(steps=10, images=320, time_s=5.0, data_wait_s=0.5)
    Progress("plain", 100).window(step=40, epoch=2, window=window, loss=1.5)
    assert capsys.readouterr().out == ("epoch 2 step 40/100 loss 1.5000 64.0 images/s, data wait 10.0 %, 30 s left\n")


def test_a_clock_that_was_set_behind_the_last_window_is_told_within_the_epoch() -> None:
    """As while its checkpoint was copied: the epoch is as much longer, and an event behind it came too late to say."""
    calls = mock.Mock()
    calls.trainer.run.return_value = Timing(steps=11, images=352, time_s=1.0)
    calls.run.steps_per_epoch = 11
    train.train_epoch(calls.run, calls.trainer, iter(()), 2)
    told = ("trainer.report_clock", (22,))
    stops = ("run.log.mark", (schema.EPOCH_STOP, schema.InEpoch(epoch_num=2)))
    called = [(name, args) for name, args, _ in calls.mock_calls]
    assert called.index(told) + 1 == called.index(stops)
