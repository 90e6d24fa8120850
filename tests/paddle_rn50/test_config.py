"""The recipes of ResNet-50: the reference points of MLPerf and what others published at them, and what is refused."""

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlperf_logging
import pytest

from harness import env, workload
from harness.sampling import steps_per_epoch
from paddle_rn50 import config
from tests.runlog.test_optimizer_events import logged

RCPS = Path(mlperf_logging.__file__).parent / "rcp_checker" / "training_4.0.0" / "rcps_resnet.json"
POINTS = {point["BS"]: point for point in json.loads(RCPS.read_text()).values()}
NAMES = ("base_learning_rate", "learning_rate_warmup_epochs", "weight_decay", "momentum", "learning_rate_decay_steps")


def test_mlperf_points_are_the_official_ones() -> None:
    official = {batch: tuple(p["Hyperparams"][f"opt_{name}"] for name in NAMES) for batch, p in POINTS.items()}
    assert official == config.MLPERF_POINTS


# Steps that the reference trains at each point: by its own formula from the decay steps that it logs, or where the
# published logs of the same rates count the warm-up in them, the decay steps themselves.
TRAINED = {
    1632: 27476 + 2 * 785 - 1,
    3264: 14523,
    4096: 13137 + 5 * 312 - 1,
    8192: 6095 + 5 * 156 - 1,
    13056: 4710,
    32768: 2267,
    49152: 1846,
    58880: 1785,
    65536: 1133 + 31 * 19 - 1,
    67840: 1133 + 31 * 18 - 1,
}


def reference_rate(step: int, *, base: float, warmup_steps: int, train_steps: int) -> float:
    """`PolynomialDecayWithWarmup` of lars_util.py, MLPerf's reference of v1.0 to v4.0, and Keras's PolynomialDecay."""
    decay_steps = train_steps - warmup_steps + 1
    if step <= warmup_steps:
        return base * step / warmup_steps
    return (base - 1e-4) * (1 - min(step - warmup_steps, decay_steps) / decay_steps) ** 2.0 + 1e-4


@pytest.mark.parametrize("batch", TRAINED)
def test_every_step_of_a_reference_point_has_the_references_rate(batch: int) -> None:
    recipe, per_epoch = config.recipe("mlperf_lars", global_batch=batch), config.IMAGENET_TRAIN // batch
    schedule = recipe.make_schedule(samples=config.IMAGENET_TRAIN, global_batch=batch, epochs=recipe.epochs)
    steps = recipe.epochs * per_epoch
    base, warmup = config.MLPERF_POINTS[batch][:2]
    wanted = {"base": base, "warmup_steps": warmup * per_epoch, "train_steps": TRAINED[batch]}
    found, rates = [schedule(s) for s in range(steps)], [reference_rate(s, **wanted) for s in range(steps)]
    assert found == pytest.approx(rates, rel=1e-6, abs=1e-12) and rates[0] == 0.0 and rates[-1] < 1.1e-4 + 1e-3 * base
    assert schedule.decay_steps == TRAINED[batch] - warmup * per_epoch + 1, "what the log says is what the update has"


def test_the_last_epoch_of_a_point_is_an_evaluations_and_later_than_its_slowest_run() -> None:
    for batch, point in POINTS.items():
        recipe = config.recipe("mlperf_lars", global_batch=batch)
        assert recipe.epochs > max(point["Epochs to converge"]), batch
        evaluated = [e for e in range(1, recipe.epochs + 1) if recipe.is_eval_epoch(e, last=1000)]
        assert evaluated == [*range(3, recipe.epochs, 4), recipe.epochs]
    assert recipe.is_eval_epoch(4, last=4)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"recipe": "mlperf_lars", "batchsize": 2048}, "no reference convergence point for global batch 2048"),
        ({"recipe": "adam"}, "RECIPE='adam': must be one of digits_small, mlperf_lars"),
        ({"workload": "hrnet", "recipe": "none"}, "RECIPE='none': must be one of scenes_small, cityscapes_80k"),
        ({"workload": "hrnet", "layout": "NHWC"}, "LAYOUT=NHWC: FCN-HRNetW18 is built in NCHW only"),
    ],
)
def test_what_a_workload_does_not_have_is_refused(job: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        workload.of_job(env.Job(**{"dgxngpu": 1, **job}))


def test_another_image_size_scales_the_evaluation_too() -> None:
    recipe = config.recipe("nvidia_cosine", global_batch=256, image_size=112)
    assert (recipe.image_size, recipe.eval_resize) == (112, 128)


# ---- MLPerf's published ResNet logs beside what `mlperf_lars` logs at the same global batch

ARCHIVES = ("mlperf_v0.7_v1.0.tar.xz", "mlperf_v1.1_baidu.tar.xz", "mlperf_resnet.tar.xz")
DECAY_STEPS = "lars_opt_learning_rate_decay_steps"
WANTED = (b'"global_batch_size"', b'"opt_name"', b'"lars_')

# Logs at a batch of ours: how many there are, and how many log our values.
LOGS = {1632: (95, 30), 3264: (300, 250), 4096: (10, 0), 8192: (25, 10), 13056: (15, 0), 32768: (25, 0), 65536: (10, 5)}
# The values that the others chose, as the rules leave them to the submitter, and in how many logs. docs/recipes.md says
# what they amount to.
CHOSEN: dict[tuple[int, str], dict[Any, int]] = {
    (1632, "base_learning_rate"): {6.0: 10, 6.32: 15, 7.3: 10, 7.5: 25, 10.5: 5},
    (3264, "base_learning_rate"): {11.0: 30, 12.5: 15},
    (3264, "learning_rate_warmup_epochs"): {3: 5},
    (3264, "learning_rate_decay_steps"): {40: 5},
    (4096, "base_learning_rate"): {13.0: 5},
    (4096, "learning_rate_warmup_epochs"): {2: 5},
    (4096, "learning_rate_decay_steps"): {"pow2": 5, 12169: 5},
    (8192, "learning_rate_decay_steps"): {5772: 5, 6720: 10},
    (13056, "base_learning_rate"): {20.0: 10},
    (13056, "momentum"): {0.94: 5},
    (32768, "base_learning_rate"): {20.81: 5, 24.952061: 5, 25.0: 5, 26.379: 5, 29.0: 5},
    (32768, "learning_rate_warmup_epochs"): {7.6: 5, 8: 5, 11: 5, 18: 5},
    (32768, "learning_rate_decay_steps"): {639.5999999999999: 5, 1872: 5, 2028: 5, 2067: 5},
    (32768, "momentum"): {0.9202: 5, 0.929: 5, 0.933205: 5, 0.9395: 5, 0.95: 5},
    (32768, "weight_decay"): {0.0001: 25},
    (65536, "base_learning_rate"): {23.080977304670448: 5},
    (65536, "learning_rate_warmup_epochs"): {33: 5},
    (65536, "learning_rate_decay_steps"): {1166.25: 5},
    (65536, "momentum"): {0.9537213777059405: 5},
}


def published(folder: Path) -> Iterator[dict[str, Any]]:
    """First values of the keys that matter, of each log whose optimizer is LARS."""
    for archive in ARCHIVES:
        with tarfile.open(folder / archive, "r|xz") as members:
            for member in members:
                content = members.extractfile(member) if "/result_" in member.name and member.isfile() else None
                wanted = (line for line in content or () if b":::MLL" in line and any(key in line for key in WANTED))
                events = [json.loads(line[line.index(b"{") :]) for line in wanted]
                said = {event["key"]: event["value"] for event in reversed(events)}
                if said.get("opt_name") == "lars":
                    yield said


def is_of_training(steps: Any, *, per_epoch: int, train_steps: int, warmup_steps: int) -> bool:
    """Whether decay steps are those of this training: in steps or in epochs, of all or after the warm-up."""
    if isinstance(steps, str):
        return False
    in_steps = steps * per_epoch if steps < 100 else steps
    return any(abs(in_steps - wanted) <= per_epoch / 2 for wanted in (train_steps, train_steps - warmup_steps))


def test_published_logs_have_our_values_or_are_listed(published_corpus: Path, tmp_path: Path) -> None:
    logs, alike, chosen = Counter[int](), Counter[int](), dict[tuple[int, str], Counter[Any]]()
    ours = {batch: logged(tmp_path / f"{batch}.txt", config, "mlperf_lars", batch) for batch in config.MLPERF_POINTS}
    for said in published(published_corpus):
        batch = int(said["global_batch_size"])
        if batch not in ours:
            continue
        per_epoch = steps_per_epoch(config.IMAGENET_TRAIN, batch)
        warmup_steps = ours[batch]["lars_opt_learning_rate_warmup_epochs"] * per_epoch
        decay = {"per_epoch": per_epoch, "train_steps": ours[batch][DECAY_STEPS] + warmup_steps}
        differ = {key for key, value in ours[batch].items() if said[key] != value}
        if is_of_training(said[DECAY_STEPS], warmup_steps=warmup_steps, **decay):
            differ.discard(DECAY_STEPS)
        logs[batch] += 1
        alike[batch] += not differ
        for key in differ:
            chosen.setdefault((batch, key.removeprefix("lars_opt_")), Counter())[said[key]] += 1
    assert {batch: (count, alike[batch]) for batch, count in logs.items()} == LOGS
    assert chosen == CHOSEN
