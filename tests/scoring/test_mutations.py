"""An importer that swaps two fields, or forgets what a meter does, does not pass.

Each mutation changes one place of an importer's source. The checks that the original passes, of which
`test_importers.py` and `test_score.py` have more, must fail on it.
"""

import importlib
import sys
import types
from pathlib import Path

import pytest

from scoring import importers, protocols
from scoring.importers import Format, read_record, text
from scoring.score import run_figure
from tests.scoring import samples

COSTS = "loss, cost_text, wait_text, rate_text"
MUTATIONS = [
    (
        "paddleclas",
        "paddleclas_static",
        "loss, cost_text, wait_text, rate_text",
        "loss, wait_text, cost_text, rate_text",
    ),
    (
        "paddleclas",
        "paddleclas_static",
        "loss, cost_text, wait_text, rate_text",
        "loss, cost_text, rate_text, wait_text",
    ),
    ("paddleclas", "paddleclas_static", "end, epoch_text, step_text", "end, step_text, epoch_text"),
    ("paddleclas", "paddleclas_static", "return step if step < 5 else step - 4", "return step"),
    ("paddleclas", "paddleclas_static", 'rate_scope="device", cumulative=True', 'rate_scope="global", cumulative=True'),
    ("paddleclas", "paddleclas_static", "DataLoader.Train.sampler", "DataLoader.Eval.sampler"),
    ("paddleclas", "paddleclas_dygraph", "max(start, 4)", "start"),
    ("paddleclas", "paddleclas_dygraph", "first_step=0", "first_step=1"),
    ("paddleseg", "paddleseg", "loss, cost, wait, rate = match", "loss, wait, cost, rate = match"),
    ("paddleseg", "paddleseg", "stamp, epoch, step, of", "stamp, step, epoch, of"),
    ("paddleseg", "paddleseg", "seconds=None if steps is None else step_time * steps", "seconds=step_time"),
    ("mmseg", "mmseg", "of, cost, wait, memory, loss", "of, wait, cost, memory, loss"),
    ("mmseg", "mmseg", "of, cost, wait, memory, loss", "of, cost, memory, wait, loss"),
    ("mmseg", "mmseg", "stamp, step, of", "stamp, of, step"),
    ("paddle18", "paddle18", "epoch, step, loss, elapse", "step, epoch, loss, elapse"),
    ("paddle18", "paddle18", "epoch, step, loss, elapse", "epoch, step, elapse, loss"),
    ("oneflow", "oneflow", "epoch, step, loss, printed, stamp", "step, epoch, loss, printed, stamp"),
    ("oneflow", "oneflow", "epoch, step, loss, printed, stamp", "epoch, step, printed, loss, stamp"),
    ("oneflow", "oneflow", 'rate_scope="global"', 'rate_scope="device"'),
    ("dllogger", "nvidia_pytorch", r"train\.total_ips", r"train\.compute_ips"),
    ("dllogger", "nvidia_pytorch", "int(groups[1]), int(groups[2])", "int(groups[2]), int(groups[1])"),
    ("dllogger", "nvidia_mxnet", "MXNET_ROW, 0", "MXNET_ROW, 1"),
    ("dllogger", "nvidia_mxnet", 'rate_scope="global"', 'rate_scope="device"'),
    ("dllogger", "nvidia_paddle", "number(groups[4]), positive(groups[5])", "number(groups[5]), positive(groups[4])"),
    ("dllogger", "nvidia_tensorflow", "steps=None if first else steps", "steps=1"),
    ("dllogger", "nvidia_tensorflow", "int(groups[1]), int(groups[2])", "int(groups[2]), int(groups[1])"),
    ("mllog", "mllog", "int(steps) or None", "int(images) or None"),
    ("mllog", "mllog", "_amount(float(seconds))", "_amount(float(wait))"),
    ("mllog", "mllog", 'wait == b"null" else float(wait)', 'wait == b"null" else float(seconds)'),
    ("mllog", "mllog", "int(step) or None", "int(epoch) or None"),
    ("oneflow", "oneflow", '"loss", "rate", "end"', '"rate", "loss", "end"'),
    ("paddleseg", "paddleseg", '"cost", "wait", "rate"', '"wait", "cost", "rate"'),
    ("paddleseg", "paddleseg", "build.stretch_of_means(match)", "build.stretch(match)"),
    ("mmseg", "mmseg", '"cost", "wait", "memory"', '"wait", "cost", "memory"'),
    ("dllogger", "nvidia_pytorch", '"step", "loss", "rate")', '"step", "rate", "loss")'),
]


def check(tmp_path: Path, name: str) -> None:
    """The same whether long stretches of rows are read by columns or all rows are read alone."""
    check_once(tmp_path, name)
    with pytest.MonkeyPatch.context() as alone:
        alone.setattr(text, "LEAST_STRETCH", 10**9)
        check_once(tmp_path, name)


def check_once(tmp_path: Path, name: str) -> None:
    """Figure, steps, times and waits of one made log against what really happened."""
    run = samples.run_of([0.5 + 0.3 * (at // 10 % 3) for at in range(240)], share=0.1, epoch_steps=120)
    path = tmp_path / "a.log"
    path.write_text(samples.WRITERS[name](run))
    record = read_record(path, format=name, **samples.OPTIONS.get(name, {}))
    assert (record.devices, record.batch_per_device) == (8, 32)
    one_based = name not in ("paddleclas_dygraph", "paddle18", "nvidia_tensorflow", "nvidia_mxnet")
    assert record.first_step == int(one_based)
    every = 1 if name in ("paddle18", "nvidia_pytorch") else 10
    assert len(record.windows) == 240 // every
    if name == "paddleclas_dygraph":
        assert record.windows[1].steps == 6
    fourth = record.windows[3]
    assert fourth.steps == every
    assert fourth.step == (30 if name == "paddleclas_dygraph" else every * 4 - (not one_based))
    assert fourth.epoch in (None, 1 if name in ("mllog", "paddleclas_dygraph", "paddleseg") else 0)
    end = fourth.step - record.first_step + 1
    true = sum(run.times[end - every : end])
    if fourth.seconds is not None:
        assert fourth.seconds == pytest.approx(true, rel=1e-3)
        if fourth.data_wait_s is not None:
            assert fourth.data_wait_s == pytest.approx(0.1 * true, rel=1e-2)
    if name in ("mllog", "paddleclas_static", "paddleclas_dygraph", "paddleseg", "mmseg"):
        assert fourth.data_wait_s is not None
    assert fourth.gpu_memory_mib == (13479 if name == "mmseg" else None)
    if record.cumulative:
        true = sum(run.times[4:end]) / (end - 4) * every
    if fourth.printed_step_time_s is not None:
        assert fourth.printed_step_time_s == pytest.approx(true / every, rel=1e-2)
    if fourth.printed_rate is not None:
        scale = 8 if record.rate_scope == "device" else 1
        assert fourth.printed_rate * scale == pytest.approx(256 * every / true, rel=1e-2)
    figure = run_figure(record, protocols.find("window")).value
    assert figure == pytest.approx(256 * 220 / sum(run.times[20:]), rel=3e-2)
    assert fourth.loss is None or 1 < fourth.loss < 10
    if name == "paddle18":
        stamped = run_figure(record, protocols.find("dlperf"))
        assert stamped.value == pytest.approx(256 * 100 / sum(run.times[20:120]), rel=1e-4)


@pytest.mark.parametrize("name", sorted(samples.WRITERS))
def test_original_passes(tmp_path: Path, name: str) -> None:
    check(tmp_path, name)


@pytest.mark.parametrize(("module", "name", "old", "new"), MUTATIONS)
def test_mutation_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, old: str, new: str
) -> None:
    original = importlib.import_module(f"scoring.importers.{module}")
    source = Path(original.__file__ or "").read_text()
    assert old in source, "the mutation no longer fits the source: bring it up to date"
    changed = types.ModuleType(f"scoring.importers.{module}")
    monkeypatch.setitem(sys.modules, changed.__name__, changed)
    exec(compile(source.replace(old, new), f"mutated {module}", "exec"), changed.__dict__)
    form = importers.FORMATS[name]
    read = getattr(changed, form.read.__name__)
    monkeypatch.setitem(importers.FORMATS, name, Format(form.clue, form.row, read, form.family))
    with pytest.raises((AssertionError, ValueError, TypeError)):
        check(tmp_path, name)
