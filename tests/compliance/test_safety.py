"""Any bytes are safe to check: no traceback, no hang, bounded memory, nothing of the log raw on the terminal."""

import random
import re
import shutil
import sys
from pathlib import Path

import pytest

from compliance import rules
from compliance.check import MAX_REFUSED_LINES, check_file
from tests import jobs, make_log
from tests.compliance import altered as by
from tests.compliance import fuzz
from tests.compliance.altered import Altered, foreign, write
from tests.compliance.test_check import check
from tests.compliance.test_header_claims import on_gpus
from tests.compliance.test_official import altered
from tests.make_log import closed_run

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").iterdir())


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_and_any_events_in_any_order(seed: int) -> None:
    """Bytes, events of any parts, and good logs with bytes or parts of events replaced."""
    chance = random.Random(seed)
    for _ in range(25):
        fuzz.run_one(chance.randbytes(chance.randrange(2000)))
        fuzz.run_one(fuzz.FRAGMENTS + chance.randbytes(4 * chance.randrange(24)))
        fuzz.run_one(altered(make_log.run(epochs=1), chance).encode(errors="surrogateescape"))
        damaged = bytearray(make_log.run(epochs=1).encode())
        for at in chance.sample(range(len(damaged)), k=chance.randint(1, 4)):
            damaged[at : at + chance.randrange(6)] = chance.randbytes(chance.randrange(7))
        fuzz.run_one(bytes(damaged))


NINES = 10**4300 - 1  # a sum with it has more digits than Python prints
HUGE, GPU = 10**400, '{"name": "A100", "memory_gib": 40.0, "driver": "1"}'
FORGED = {
    "images": lambda log: log.inside("step_window", images=HUGE),
    "images below 0": lambda log: log.inside("step_window", images=-HUGE),
    "energy": lambda log: log.inside("telemetry_summary", energy_j=HUGE),
    "accuracy": lambda log: log.value("eval_samples", 2**62).value("eval_accuracy", 1e299),
    "cores": lambda log: by.replaced(log, ('"cores": 2', f'"cores": {HUGE}')),
    "TELEMETRY_S": lambda log: by.settings(log, TELEMETRY_S=HUGE),
    "CHECKPOINT_MINUTES": lambda log: by.settings(log, CHECKPOINT_MINUTES=HUGE),
    "steps of a measurement": lambda log: by.settings(
        log.inside("run_summary", mode="throughput"), MODE="throughput", WARMUP_STEPS=NINES, MEASURED_STEPS=NINES),
    "the first step of a resumed run": lambda log: log.inside("run_summary", resumed=True).metadata(
        "step_window", step=-NINES).inside("step_window", steps=21),
    "image_size": lambda log: by.settings(log, RECIPE_image_size=HUGE),
    "batch": lambda log: by.settings(log.inside("run_summary", batch_per_device=HUGE), RECIPE_base_batch=256),
    "steps of a warm-up": lambda log: by.settings(
        log.value("train_samples", 10**18), RECIPE_warmup_epochs=1e299, RECIPE_warmup_from_zero=True),
    "devices": lambda _: on_gpus().inside("run_summary", devices=HUGE),
    "nodes": lambda _: on_gpus().inside("run_summary", nodes=HUGE),
    "no nodes, of a run with power": lambda _: on_gpus().inside("run_summary", nodes=0),
    "no nodes": lambda log: by.settings(by.replaced(log, ('"gpus": []', f'"gpus": [{GPU}]')), DEVICE="gpu").inside(
        "run_summary", nodes=0),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_our_own_log_with_a_number_that_nothing_can_be_computed_with(name: str) -> None:
    fuzz.run_one(FORGED[name](Altered(make_log.run())).text.encode())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_inputs_that_the_fuzzer_found(path: Path) -> None:
    fuzz.run_one(path.read_bytes())


def test_the_corpus_reaches_a_pass_and_many_rules(tmp_path: Path) -> None:
    """A corpus of inputs that all fail in the first line would prove nothing."""
    assert len(CORPUS) > 50
    broken: set[str] = set()
    passed = 0
    ruleset = rules.load("4.0.0")
    for path in reversed(CORPUS):  # the whole logs first
        data = path.read_bytes()
        (tmp_path / "log").write_bytes(fuzz.fragments(data[1:]) if data.startswith(fuzz.FRAGMENTS) else data)
        found = check_file(tmp_path / "log", ruleset).findings
        broken |= {finding.rule for finding in found if finding.severity != "info"}
        passed += not any(finding.official for finding in found)
        if passed >= 3 and len(broken) > 50:
            return
    pytest.fail(f"{passed} pass, {len(broken)} rules are broken")


@pytest.mark.parametrize(
    ("runs", "largest"),
    [
        pytest.param(60, 300, marks=[pytest.mark.slow, pytest.mark.ci]),
        pytest.param(2_000, 1 << 20, marks=pytest.mark.slow),
    ],
)
def test_the_fuzzer_finds_nothing(runs: int, largest: int, tmp_path: Path) -> None:
    for folder in ("new", "known"):
        (tmp_path / folder).mkdir()
    for path in CORPUS:
        if path.stat().st_size < largest:
            shutil.copy(path, tmp_path / "known")
    options = [f"-runs={runs}", "-seed=7", "-max_len=6000", "-timeout=60", tmp_path / "new", tmp_path / "known"]
    # libFuzzer judges by ru_maxrss, which would include that of this process; that of a shell is small.
    through_shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    done = jobs.run([*through_shell, sys.executable, str(HERE / "fuzz.py"), *map(str, options)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "INFO: Instrumenting compliance.check" in done.stderr


def test_a_log_is_read_no_further_than_too_many_damaged_lines(tmp_path: Path) -> None:
    """Not even the events that follow at once."""
    log = Altered(make_log.run())
    damage = "\n".join([":::MLLOG x"] * MAX_REFUSED_LINES)
    log.add_after("run_start", damage)
    (tmp_path / "log").write_text(log.text)
    report = check_file(tmp_path / "log", rules.load("4.0.0"))
    assert {finding.rule for finding in report.findings} == {"line-damaged"}
    assert report.run.start_ms is not None
    assert report.run.stop is None and not report.run.evaluations


def _check(path: Path) -> tuple[int, float]:
    """Exit status of `check`, and its peak memory in MiB (VmHWM: ru_maxrss would include the parent's, before exec)."""
    code = (
        "import re, sys; from compliance.__main__ import main; status = main(['check', sys.argv[1]]);"
        "peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1];"
        "print(int(peak) / 1024, file=sys.stderr); sys.exit(status)"
    )
    done = jobs.run([sys.executable, "-c", code, str(path)])
    return done.returncode, float(done.stderr)


@pytest.mark.parametrize(
    "content",
    [
        b":::MLLOG " + b"x" * 10_000_000,
        b"x" * 10_000_000 + b":::MLLOG {}",
        b":::MLLOG " * 1_100_000,
        b":::MLLOG \n" * 200_000,
        b"# {" * 3_000_000,
        b"# {\n" * 200_000,
        pytest.param(b"\r" * 10_000_000, marks=[pytest.mark.slow, pytest.mark.ci]),
        b"\n" * 3_000_000,  # more than the memory holds if a line takes 50 bytes
        b"\0" * 10_000_000,
        b":::MLLOG " + b'{"a":' * 100_000,
        b":::MLLOG " + b"[" * 1_000_000,
        b':::MLLOG {"key": "seed", "value": ' + b"9" * 1_000_000 + b"}\n",
        b':::MLLOG {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "eval_accuracy", "value": 0.5, '
        b'"metadata": {"epoch_num": 1}}\n' * 30_000,
        bytes(range(256)) * 40_000,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_hostile_files_take_little_memory_and_time(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(content)
    status, peak_mib = _check(tmp_path / "log")
    assert status == 1
    assert peak_mib < 150


def test_of_a_rule_that_is_not_in_force_as_many_notes_are_kept_as_of_another(tmp_path: Path) -> None:
    log = foreign(closed_run())
    seed = next(line for line in log.splitlines() if '"key": "seed"' in line)
    without_place = re.sub(r'"metadata": {[^}]*}', '"metadata": {}', seed)
    assert without_place != seed
    write(tmp_path, log.replace(seed, "\n".join([without_place] * 40)))
    _, [file] = check(tmp_path, "--ruleset", "4.0.0")
    notes = [f["actual"] for f in file["findings"] if f["rule"] == "seed-present"]
    assert len(notes) == 11 and notes[0].startswith("not applied: in force from ruleset 4.1.0 on")
    assert sum("30 more breaches of seed-present" in note for note in notes) == 1
