"""The search for a strategy: what it tries, what it takes for better, and one real search on CPU ranks."""

import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness import describe, env
from harness.job import job_of
from program import strategy
from program.optimizers import OptimizerConfig
from runlog.errors import RunError
from runlog.verdict import OK, WARNING, Verdict
from scoring.record import Record, Window
from tests import jobs
from tests.program import programs
from tools.tune import __main__ as tune
from tools.tune.candidates import CONTROL, SERIAL, Candidate, candidates
from tools.tune.runs import Runner
from tools.tune.verdicts import allowed_loss, batch_verdict, finalists

CPU = job_of()
COMMAND = [sys.executable, "-m", "tools.tune"]


# ---- what is tried


@pytest.mark.parametrize(("precision", "ranks"), [("fp32", 1), ("tf32", 8), ("amp_o1", 8), ("amp_o2", 1)])
def test_every_strategy_tried_is_one_that_this_paddle_takes(precision: str, ranks: int) -> None:
    dtype, layout = ("float16", "NHWC") if precision.startswith("amp") else ("float32", "NCHW")
    found = candidates(job_of(device="gpu", precision=precision, dgxngpu=ranks))
    for candidate in found:
        text = candidate.exports("").get("STRATEGY", "")
        strategy.resolve(strategy.parse(text), dtype=dtype, layout=layout, device="gpu")
    names = {candidate.name for candidate in found}
    assert ("fuse_grad_size_in_MB=64" in names) == (ranks == 8)
    assert ("fuse_bn_act_ops=0" in names) == precision.startswith("amp")


@pytest.mark.parametrize(
    ("job", "tried", "left_out"),
    [
        ({"workload": "hrnet", "precision": "amp_o2"}, "fuse_elewise_add_act_ops=0", "fuse_bn_act_ops=0"),
        ({"precision": "amp_o1", "layout": "NCHW"}, "fuse_elewise_add_act_ops=0", "fuse_bn_add_act_ops=0"),
        ({"precision": "amp_o2", "layout": "NCHW"}, "cuda_graph=1", "resnet_unit=1"),
        ({"precision": "amp_o1", "workload": "hrnet"}, "enable_addto=0", "cuda_graph=1"),
        ({"precision": "fp32", "workload": "hrnet"}, "cuda_graph=1", "resnet_unit=1"),
        ({"recipe": "mlperf_lars"}, "merged_lars=1", "merged_optimizer=0"),
        ({"precision": "tf32"}, "merged_optimizer=0", "merged_lars=1"),
    ],
)
def test_what_would_change_nothing_is_not_measured(job: dict[str, Any], tried: str, left_out: str) -> None:
    names = {candidate.name for candidate in candidates(job_of(device="gpu", **job))}
    assert tried in names and left_out not in names


@pytest.mark.parametrize(
    ("job", "can_run"),
    [
        ({}, True),
        ({"PRECISION": "amp_o2"}, False),
        ({"PRECISION": "fp32"}, False),
        ({"LOSS_SCALE": "2048"}, False),
        ({"DGXNGPU": "4", "RANK_NUMA": ""}, False),
    ],
)
def test_the_automatic_mode_is_tried_where_a_run_takes_it(job: dict[str, str], can_run: bool) -> None:
    settings = {"DGXSYSTEM": "DGXA100", "PRECISION": "amp_o1", "MODE": "throughput"} | job
    names = {candidate.name for candidate in candidates(env.of_system(**settings))}
    assert ("auto" in names) == can_run
    run = jobs.called(describe.main, "--json", STRATEGY="auto", **settings)
    assert (run.returncode == 0) == can_run, run.stderr


FINE = "fuse_grad_size_in_MB=0.01"  # several buckets in a small program


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "amp_o1", "amp_o2"])
@pytest.mark.parametrize(("recipe", "optimizer"), [("nvidia_cosine", programs.SGD), ("mlperf_lars", programs.LARS)])
def test_every_strategy_tried_is_another_program(name: str, recipe: str, optimizer: OptimizerConfig) -> None:
    job = job_of(device="gpu", precision=name, dgxngpu=8, recipe=recipe)
    found: dict[str, str] = {}  # strategy by the operators of its program
    for way in (Candidate(name="base"), CONTROL, *candidates(job)):
        knobs = strategy.parse(",".join(way.knobs))
        of_program = not (way.variables or knobs.flags or knobs.auto)
        if of_program and not way.name.startswith("fuse_grad_size_in_MB"):
            built = programs.build(
                name=name,
                device="gpu",
                ranks=8,
                knobs=",".join((FINE, *way.knobs)),
                recipe=replace(programs.RECIPE, optimizer=optimizer),
            )
            ops = [(op.type, op.input_arg_names, op.output_arg_names) for op in built.main.global_block().ops]
            same = found.setdefault(str(ops), way.name)
            assert same == way.name, f"{way.name} builds the program of {same}"
    assert len(found) >= 6


def test_on_a_cpu_fewer_processes_make_the_same_update() -> None:
    found = {candidate.name: candidate for candidate in candidates(job_of(dgxngpu=4))}
    assert found["DGXNGPU=2"].exports("enable_inplace=1") == {
        "DGXNGPU": "2",
        "BATCHSIZE": "32",
        "STRATEGY": "enable_inplace=1,gradient_merge=2",
    }
    assert "DGXNGPU=3" not in found and "auto" not in found
    of_another = {way.name for way in candidates(job_of(strategy="fuse_grad_size_in_MB=4,merged_optimizer=0"))}
    assert not of_another & {"fuse_grad_size_in_MB=4", "merged_optimizer=0"} and "fuse_grad_size_in_MB=1" in of_another


@pytest.mark.parametrize(
    ("arguments", "variables", "reason"),
    [
        ("--only bogus", {}, "--only bogus: must be of enable_inplace=1,"),
        ("--repeats 2", {}, "--repeats 2: must be at least 3"),
        ("--batches 32,x", {}, "--batches 32,x: must be whole numbers"),
        ("--batches=", {}, "--batches : must be whole numbers above 0 with commas between"),
        ("--batches= --only enable_inplace=1", {}, "--only enable_inplace=1: --batches tries no strategies"),
        ("--batches 32,٣", {}, "--batches 32,٣: must be whole numbers"),
        ("--batches 8,16,8", {}, "--batches 8,16,8: 8 is there twice: name each size once"),
        ("--name a/b", {}, "--name 'a/b': must be of letters, digits, '.', '_' and '-': it names config_<name>.sh"),
        ("--name $(true)", {}, "--name '$(true)': must be of letters"),
        ("--batches 32 --only enable_inplace=1", {}, "--only enable_inplace=1: --batches tries no strategies"),
        ("--batches --name mine", {}, "--name mine: --batches tries no strategies and writes no config file"),
        ("", {"STRATEGY": "auto"}, "it is measured as one of the strategies where it can run"),
        ("", {"DGXNNODES": "2"}, "runs are started on this node alone"),
        ("", {"BATCHSIZE": "0"}, "BATCHSIZE=0: must be at least 1"),
        ("--name CPU", {}, "config_CPU.sh: exists"),
        (
            "--folder /proc/none",
            {},
            "--folder /proc/none: no such file or folder: check the path; it must be a folder that you may write",
        ),
    ],
)
def test_wrong_use_ends_in_one_line(arguments: str, variables: dict[str, str], reason: str) -> None:
    done = jobs.called(tune.main, "--dry-run", *arguments.split(), **variables)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ") and reason in done.stderr


def test_a_dry_run_prints_each_command_and_runs_nothing(tmp_path: Path) -> None:
    batches = [f"BATCHSIZE={size}" for size in (32, 64, 96, 128, 160, 192, 224, 256)]
    base, changes = "CLEAR_CACHES=0", ["STRATEGY=perturb_input=1", "STRATEGY=enable_inplace=1"]  # control, strategy
    for arguments, runs, summary in (
        (["--batches"], batches, "5 turns of 8 runs; "),
        (["--batches", "32", "--repeats", "1"], batches[:1], "1 turn of 1 run; "),
        (["--only", "enable_inplace=1"], [base, *changes], "5 turns of 2 runs and one control, "),
    ):
        done = jobs.called(tune.main, *arguments, "--dry-run", LOGDIR=str(tmp_path))
        shown = re.findall(r"^env MODE=throughput .* (\S+) \S*run_and_time\.sh$", done.stdout, re.M)
        assert [text if text in runs else base for text in shown] == runs
        assert done.stdout.splitlines()[-1].startswith(summary) and list(tmp_path.iterdir()) == []


# ---- what is taken for better


def made(rate: float, losses: Sequence[float]) -> Record:
    """A run at this rate with the losses of its two windows."""
    windows = (
        Window(line=1, phase="warmup", images=160, seconds=1.0, loss=losses[0]),
        Window(line=2, phase="measured", images=100 * rate, seconds=100.0, loss=losses[1]),
    )
    nodes = [{"cpu": "a test's", "cores": 2, "gpus": []}]
    header = {"source": {"commit": "c0ffee", "dirty": False}, "hardware": {"nodes": nodes}}
    return Record(file="f", sha256="", lines=2, format="mllog", windows=windows, header=header)


Ways = dict[str, tuple[list[float], float]]


class Machine:
    """In place of real runs: (images/s of turn n, added to the last loss, of the control to the first) of each way."""

    def __init__(self, ways: Ways) -> None:
        self.ways = {name: (list(rates), shift) for name, (rates, shift) in ways.items()}

    def run(self, way: Candidate) -> Record:
        rates, shift = self.ways[way.name]
        if not rates:
            raise RunError("out of memory at BATCHSIZE=16")
        rates.append(rate := rates.pop(0))
        return made(rate, (2.0 + shift, 1.0) if way == CONTROL else (2.0, 1.0 + shift))


STEADY = [40.0, 40.2, 39.9, 40.1, 40.0]
BASE: Ways = {"base": (STEADY, 0.0), "control": (STEADY[:1], 1e-5)}


def searched(folder: Path, monkeypatch: pytest.MonkeyPatch, ways: Ways) -> tuple[jobs.Done, str]:
    """A search in which the ways, beside the base and the control, have these rates and losses; its config file."""
    only = ",".join(way.name for way in candidates(CPU) if way.name in ways)
    machine, file = Machine(BASE | ways), folder / "config_CPU_tuned.sh"
    monkeypatch.setattr(Runner, "run", lambda self, way, turn: machine.run(way))
    done = jobs.called(tune.main, "--only", only, "--folder", folder, LOGDIR=str(folder))
    return done, file.read_text() if file.exists() else ""


def exports(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("export ")]


def resolved(folder: Path, system: str, **variables: str) -> dict[str, str]:
    """The environment of a job on a system whose config file is in `folder`, beside the repository's config_CPU.sh."""
    (folder / "config_CPU.sh").write_text((jobs.REPOSITORY / "config_CPU.sh").read_text())
    with mock.patch.object(env, "ROOT", folder):
        return env.resolve({"PATH": os.defpath, "DGXSYSTEM": system} | variables)


def test_what_is_really_faster_is_written_with_its_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faster = [rate * 1.05 for rate in (40.1, 40.0, 40.0, 40.2, 40.1)]
    _, text = searched(tmp_path, monkeypatch, {"enable_inplace=1": (faster, 5e-5)})
    assert exports(text) == ['export RN50_FP32_STRATEGY="${RN50_FP32_STRATEGY:-enable_inplace=1}"']
    assert "commit c0ffee" in text and "a test's, 2 cores" in text and "chosen: enable_inplace=1" in text
    assert text.startswith("# shellcheck shell=bash\n") and "\n# Throughput to expect: 42.0" in text
    found = resolved(tmp_path, "CPU_tuned")
    assert (found["STRATEGY"], found["HRNET_BATCHSIZE"]) == ("enable_inplace=1", "4"), "the system's own, too"


def test_what_was_not_measured_has_the_systems_values(tmp_path: Path) -> None:
    variables = (("DGXNGPU", "1"), ("BATCHSIZE", "32"), (SERIAL, "0"))
    winner = Candidate(name="w", knobs=("gradient_merge=2",), variables=variables)
    (tmp_path / "config_T.sh").write_text(tune.config_text(name="T", job=CPU, winner=winner, evidence=[]))
    names = ("DGXNGPU", "BATCHSIZE", SERIAL, "STRATEGY")
    found = resolved(tmp_path, "T")
    assert [found[name] for name in names] == ["1", "32", "0", "gradient_merge=2"]
    assert set(names) <= set(found["JOB_FROM_CONFIG"].split())
    assert resolved(tmp_path, "T", BATCHSIZE="7")["BATCHSIZE"] == "7", "what the user says goes before"
    for other in ({"WORKLOAD": "hrnet"}, {"PRECISION": "amp_o2"}):
        found, base = resolved(tmp_path, "T", **other), resolved(tmp_path, "CPU", **other)
        assert not set(names) & found.keys() and not set(names) & base.keys()


def test_the_precision_of_a_system_is_its_files(tmp_path: Path) -> None:
    """Without PRECISION the job on a DGX is another than one measured in FP32; its ranks are the file's for all."""
    winner = Candidate(name="w", knobs=("enable_inplace=1",), variables=(("DGXNGPU", "4"),))
    text = tune.config_text(name="T", job=job_of(dgxsystem="S"), winner=winner, evidence=[])
    (tmp_path / "config_T.sh").write_text(text)
    (tmp_path / "config_S.sh").write_text("export PRECISION=${PRECISION:-amp_o2}\nexport DGXNGPU=${DGXNGPU:-8}\n")
    for variables, expected in (({}, ("8", None)), ({"PRECISION": "fp32"}, ("4", "enable_inplace=1"))):
        found = resolved(tmp_path, "T", **variables)
        assert (found["DGXNGPU"], found.get("STRATEGY")) == expected


def test_the_evidence_is_printed_where_the_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_text", mock.Mock(side_effect=ValueError("No space left on device")))
    done, _ = searched(tmp_path, monkeypatch, {"enable_inplace=1": (STEADY, 0.0)})
    assert "error: No space left" in done.stderr and "config  " not in done.stdout
    assert "enable_inplace=1 " in done.stdout and "chosen: the base" in done.stdout


@pytest.mark.parametrize(
    ("rates", "shift", "said", "unsaid"),
    [
        ([2 * rate for rate in STEADY], 2e-4, "refused: its losses differ by", "measured again"),
        ([38.0, 44.0, 39.0, 45.0, 40.0], 0.0, "no difference shown", "measured again"),
        ([rate * 1.05 for rate in STEADY] + STEADY, 0.0, "measured again", "refused"),  # by luck, the first time
        ([2 * rate for rate in STEADY], math.nan, "refused: its losses differ by inf times", "measured again"),
    ],
    ids=["trains something else", "within the spread", "lucky", "no number"],
)
def test_what_is_never_chosen(
    rates: list[float], shift: float, said: str, unsaid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = searched(tmp_path, monkeypatch, {"merged_optimizer=0": (rates, shift)})
    assert exports(text) == [] and "chosen: the base" in text and said in text and unsaid not in text


def test_what_goes_together_is_measured_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {
        "fuse_grad_size_in_MB=1": ([rate * 1.02 for rate in STEADY], 0.0),
        "fuse_grad_size_in_MB=4": ([rate * 1.04 for rate in STEADY], 0.0),  # the better of two that exclude each other
        "FLAGS_new_executor_serial_run=0": ([rate * 1.03 for rate in STEADY], 0.0),
        "fuse_grad_size_in_MB=4 + FLAGS_new_executor_serial_run=0": ([rate * 1.08 for rate in STEADY], 0.0),
        "enable_inplace=1": ([], 0.0),
    }
    _, text = searched(tmp_path, monkeypatch, ways)
    assert len(exports(text)) == 2
    again = text.partition("measured again")[2]  # the best alone, too
    assert re.search(r"^# ok +fuse_grad_size_in_MB=4  ", again, re.M) and "fuse_grad_size_in_MB=1" not in again
    (tmp_path / "config_CPU_tuned.sh").write_text(text)
    found = resolved(tmp_path, "CPU_tuned")
    assert (found[SERIAL], found["STRATEGY"]) == ("0", "fuse_grad_size_in_MB=4")
    assert re.search(r"^# fatal +enable_inplace=1 +refused: out of memory at BATCHSIZE=16$", text, re.M)


def test_turns_go_forth_and_back_and_the_control_runs_in_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def run(runner: Runner, way: Candidate, turn: str) -> Record:
        order.append(f"{turn} {way.name}")
        return made(40.0, (2.0, 1.0))

    monkeypatch.setattr(Runner, "run", run)
    changes = [Candidate(name="a"), Candidate(name="b")]
    measured = Runner(CPU).measure("screen", [Candidate(name="base"), CONTROL, *changes], 3)
    assert order == [
        *("screen_1 base", "screen_1 control", "screen_1 a", "screen_1 b"),
        *("screen_2 b", "screen_2 a", "screen_2 base"),
        *("screen_3 base", "screen_3 a", "screen_3 b"),
    ]
    assert [len(runs) for runs in measured.runs.values()] == [3, 1, 3, 3]


def test_the_fastest_goes_again_alone_and_with_all_that_it_does_not_exclude() -> None:
    def faster(ratio: float) -> Verdict:
        return Verdict(check="c", status=OK, found="", figures={"ratio": ratio})

    small, large = (Candidate(name=size, knobs=(f"fuse_grad_size_in_MB={size}",)) for size in ("1", "64"))
    serial = Candidate(name="serial", variables=((SERIAL, "0"),))
    auto = Candidate(name="auto", knobs=("auto",))
    slower = Verdict(check="c", status=WARNING, found="", figures={"ratio": 0.9})
    alone = finalists({small: faster(1.02), large: faster(1.05), serial: slower})
    assert alone == [large]
    first, joined = finalists({small: faster(1.02), serial: faster(1.03), large: faster(1.05), auto: faster(1.01)})
    assert first == large and joined.name == "64 + serial" and joined.touches == {"fuse_grad_size_in_MB", SERIAL}
    assert finalists({auto: faster(1.2), large: faster(1.05)}) == [auto], "it goes with nothing"
    assert finalists({serial: slower}) == []


@pytest.mark.parametrize(
    ("stop", "status", "last"), [(KeyboardInterrupt(), 130, "stopped by signal INT\n"), (SystemExit(143), 143, "")]
)
def test_a_search_that_is_stopped_says_where_its_runs_are(
    stop: BaseException, status: int, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "run", mock.Mock(side_effect=stop))
    done = jobs.called(tune.main, "--folder", tmp_path, LOGDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (status, "")
    said = f"nothing is judged or written; the logs of the runs so far are in {tmp_path}/tune/"
    assert done.stderr.startswith(said) and done.stderr.partition("\n")[2] == last


@pytest.mark.parametrize("missing", ["base", "control"])
def test_without_a_base_or_a_control_nothing_is_chosen(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, text = searched(tmp_path, monkeypatch, {"enable_inplace=1": (STEADY, 0.0), missing: ([], 0.0)})
    assert (done.returncode, text) == (1, "")
    assert f"error: the {missing} does not run: out of memory at BATCHSIZE=16\n" in done.stderr


def test_the_allowed_difference_is_that_of_the_bases_own_runs_and_of_the_controls() -> None:
    allowed = allowed_loss([made(40.0, losses) for losses in ((2.0, 1.0), (2.0, 1.5), (2.001, 1.0))])
    assert allowed.tolist() == pytest.approx([0.01 + 2e-6, 5.0 + 1e-6])
    # Rounding errors grow, so a window where two runs happen to agree allows no less than those before it.
    allowed = allowed_loss([made(40.0, losses) for losses in ((2.0, 1.0), (2.1, 1.0))])
    assert allowed.tolist() == pytest.approx([1.0 + 2e-6, 1.0 + 1e-6])


def test_the_memory_of_a_batch_is_that_of_the_measured_windows() -> None:
    """In the warm-up, cuDNN tries algorithms that take more."""
    windows = []
    for phase, memory_mib in (("warmup", 9000.0), ("measured", 5000.0), ("measured", 6000.0)):
        window = Window(line=1, steps=10, images=640, seconds=1.0, phase=phase, gpu_memory_mib=memory_mib)
        windows.append(window)
    record = Record(file="a", sha256="a", lines=3, format="mllog", windows=tuple(windows))
    assert batch_verdict("batch 64", [record]).found.endswith("no interval: one turn, 6000 MiB of GPU memory")


# ---- the real thing

TINY: dict[str, Any] = {
    **jobs.TINY,
    "BATCHSIZE": "4",
    "RECIPE": "nvidia_cosine",
    "WARMUP_STEPS": "2",
    "MEASURED_STEPS": "4",
}


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_search_on_cpu_ranks_ends_in_a_config_that_runs(tmp_path: Path) -> None:
    ways = "fuse_grad_size_in_MB=1,DGXNGPU=1"
    options = ["--only", ways, "--repeats", "3", "--folder", str(tmp_path)]
    done = jobs.run([*COMMAND, *options], timeout_s=1800, LOGDIR=str(tmp_path), **TINY)
    assert done.returncode == 0, done.stderr[-2000:]
    text = (tmp_path / "config_CPU_tuned.sh").read_text()
    rows = {found[1]: found[0] for found in re.finditer(r"^# \w+ +(\S+) +[\d.]+ \(.*$", text, re.M)}
    assert rows.keys() >= {"base", "fuse_grad_size_in_MB=1", "DGXNGPU=1"}, text
    for name in ("fuse_grad_size_in_MB=1", "DGXNGPU=1"):
        assert "refused" not in rows[name], "the same update must have the same losses"
    assert len(list(tmp_path.glob("tune/*/screen_*/*/CPU/rn50/result_0.txt"))) == 3 * 3 + 1


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_a_sweep_shows_what_does_not_fit_with_its_reason(tmp_path: Path) -> None:
    variables: dict[str, Any] = {**jobs.TINY, "LOGDIR": str(tmp_path)}
    done = jobs.run([*COMMAND, "--batches", "2,4000", "--repeats", "1"], **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    rate = r"^ok +BATCHSIZE=2 +[\d.]+ images/s, no interval: one turn, GPU memory not measured$"
    assert re.search(rate, done.stdout, re.M), done.stdout
    assert re.search(r"^fatal +BATCHSIZE=4000 +not measured: global batch 8000 is larger than", done.stdout, re.M)
