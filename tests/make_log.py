"""Well-formed logs of ours, written by the schema: the tools must take them, tests alter them."""

import io
import itertools
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlperf_logging.mllog.mllog import MLLogger

from runlog import schema, workloads
from runlog.schema import InBlock, InEpoch, as_json

CLOCK_START_MS = 1_700_000_000_000
DIGITS = next(workload.embedded for workload in workloads.WORKLOADS if workload.embedded)  # that of the first, rn50


class Log:
    """A log that is being written; `now_ms` is its clock, which each event moves on by `tick_ms`."""

    def __init__(self, *, tick_ms: int = 1) -> None:
        self.text = io.StringIO()
        handler = logging.StreamHandler(self.text)
        logger = logging.Logger("a log of its own")  # not from getLogger: loggers of that kind are never freed
        logger.addHandler(handler)
        self.mllog = MLLogger(logger)
        self.now_ms: float = CLOCK_START_MS
        self._tick_ms = tick_ms

    def section(self, section: schema.Section[Any], value: Any) -> None:
        self.text.write(f"# {json.dumps({section.name: as_json(value)})}\n")

    def say(self, line: str) -> None:
        self.text.write(line + "\n")

    def event(self, point: schema.Point[Any], value: Any, where: Any = None) -> None:
        self.mllog.event(point.key, as_json(value), metadata=as_json(where), time_ms=int(self.now_ms))
        self.now_ms += self._tick_ms

    def mark(self, mark: schema.Mark, where: Any = None) -> None:
        write = self.mllog.start if mark.event_type == "INTERVAL_START" else self.mllog.end
        write(mark.key, None, metadata=as_json(where), time_ms=int(self.now_ms))
        self.now_ms += self._tick_ms

    def rank_times(self, window: schema.StepWindow, *, step: int) -> None:
        """Those of the ranks of a CPU in this window, of which rank 0 waited least for data, and computed most."""
        waited_s, computed_s = window.data_wait_s, window.time_s - window.data_wait_s
        times = schema.RankTimes(
            data_wait_least_s=waited_s,
            data_wait_median_s=waited_s,
            data_wait_most_s=1.5 * waited_s,
            data_wait_rank=1,
            data_wait_host="node0",
            compute_least_s=0.9 * computed_s,
            compute_median_s=0.9 * computed_s,
            compute_most_s=computed_s,
            compute_rank=0,
            compute_host="node0",
        )
        self.event(schema.RANK_TIMES, times, schema.AtStep(step=step))

    def window(self, window: schema.StepWindow, *, step: int, epoch: int, phase: str = "train") -> None:
        self.event(schema.STEP_WINDOW, window, schema.InWindow(step=step, epoch_num=epoch, phase=phase))

    def facts(self, facts: dict[str, Any]) -> None:
        for key, value in facts.items():
            point = schema.EVENTS[key]
            assert isinstance(point, schema.Point)
            self.event(point, value)


def run_summary(**changes: Any) -> schema.RunSummary:
    """That of a run of two devices on the embedded digits."""
    fields: dict[str, Any] = {
        **{"devices": 2, "nodes": 1, "batch_per_device": 16, "precision": "fp32", "math_mode": "fp32"},
        **{"mode": "train", "data": "real", "resumed": False, "profiled": False},
        **{"framework": "paddlepaddle 2.6.2", "model": "resnet50_v1.5"},
    }
    return schema.RunSummary(**(fields | changes))


def cpu_window(*, steps: int, images: int, time_s: float, loss: float, data_wait_s: float = 0.01) -> schema.StepWindow:
    """What a run without a GPU measures in a window of steps."""
    return schema.StepWindow(
        steps=steps, images=images, time_s=time_s, data_wait_s=data_wait_s, loss=loss, gpu_memory_mib=None, power_w=None
    )


def _config(summary: schema.RunSummary, **given: Any) -> dict[str, schema.Setting]:
    """The settings of the job of this summary, but for those that no reader of a log looks at."""
    settings = {
        "DGXSYSTEM": "CPU",
        "WORKLOAD": "rn50" if summary.model.startswith("resnet") else "hrnet",
        "MODE": summary.mode,
        "BATCHSIZE": summary.batch_per_device,
        "PRECISION": summary.precision,
        "STRATEGY": "",
        "DEVICE": "cpu",
        "DATA": summary.data,
        "DGXNNODES": summary.nodes,
        "DGXNGPU": summary.devices // summary.nodes,
        "IMAGE_SIZE": 0,
        "WARMUP_STEPS": 10,
        "MEASURED_STEPS": 50,
        "CHECKPOINT_EPOCHS": 0,
        "CHECKPOINT_MINUTES": 1,  # so that there may be one
        "RESUME": "auto" if summary.resumed else "no",
        "TELEMETRY_S": 1,
        "PROFILE": "steps:2-3" if summary.profiled else "",
        "SOURCE_COMMIT": "",
        "IMAGE_DIGEST": "",
        **given,
    }
    return {
        name: schema.Setting(value=value, origin="environment" if name == "SEED" else "config_CPU.sh")
        for name, value in settings.items()
    }


FOLDER = "/data/images"
TRAIN_IMAGE_BYTES, EVAL_IMAGE_BYTES = 114_661, 134_120  # the mean of an image of ImageNet


# How many there are of a model, and how many numbers they have, by the number of its classes.
GRADIENTS = {
    "resnet50_v1.5": {10: (161, 23_528_522), 1000: (161, 25_557_032)},
    "fcn_hrnetw18": {19: (921, 9_641_119)},
}


def _data(model: str, samples: tuple[int, int]) -> dict[str, Any]:
    """The settings of a run on so many images: those of the digits, which need no folder, or others."""
    if model == "fcn_hrnetw18":
        return {"DATADIR": FOLDER, "RECIPE.classes": 19}
    if samples == (1437, 360):
        return {"DATADIR": "", "RECIPE.classes": 10}
    return {"DATADIR": FOLDER, "RECIPE.classes": 1000}


def _passport(samples: int, *, mean_bytes: int, sha256: str) -> schema.Passport:
    """The passport of so many files."""
    return schema.Passport(files=samples, bytes=samples * mean_bytes, sha256=sha256, is_exact=True)


def _digests(folder: str) -> tuple[str, str]:
    """Those of the files for training and for evaluation: of the embedded digits without a folder."""
    return ("2" * 64, "3" * 64) if folder else (DIGITS.train_sha256, DIGITS.eval_sha256)


def _header(log: Log, summary: schema.RunSummary, config: dict[str, Any], samples: tuple[int, int], cores: int) -> None:
    log.section(schema.LOG, schema.Format())
    log.section(schema.SOURCE, schema.Source(commit="0" * 40, dirty=False, lock_sha256="1" * 64, image_digest=None))
    log.section(schema.CONFIG, _config(summary, **config))
    log.section(schema.ENVIRONMENT, {"OMP_NUM_THREADS": "1"})
    log.section(schema.PACKAGES, {"paddlepaddle-gpu": "2.6.2", "mlperf-logging": "4.1.68"})
    node = schema.Node(
        host="node0", cpu="Example CPU 9000", cores=cores, memory_gib=23.4, kernel="6.1", gpus=[], topology=None
    )
    log.section(schema.HARDWARE, schema.Hardware(nodes=[node], math_mode=summary.math_mode, device="cpu"))
    synthetic = summary.data == "synthetic"
    train_sha256, eval_sha256 = _digests(config["DATADIR"])
    data = schema.Dataset(
        name=config["DATADIR"].rpartition("/")[2] or "uci-digits-64",
        train_samples=samples[0],
        eval_samples=samples[1],
        synthetic=synthetic,
        form="files",
        train=None if synthetic else _passport(samples[0], mean_bytes=TRAIN_IMAGE_BYTES, sha256=train_sha256),
        eval=None if synthetic else _passport(samples[1], mean_bytes=EVAL_IMAGE_BYTES, sha256=eval_sha256),
    )
    log.section(schema.DATASET, data)
    convolutions = {"resnet50_v1.5": 53, "fcn_hrnetw18": 372}.get(summary.model, 53)
    operators = {"conv2d": convolutions}
    if summary.precision.startswith("amp"):
        operators["cast"] = 2
    all_reduces, summed = 0, ""
    if summary.devices > 1:
        all_reduces, summed = 1, f"summed over {summary.devices} ranks once, "
        operators["c_allreduce_sum"] = all_reduces
    tensors, numbers = GRADIENTS.get(summary.model, GRADIENTS["resnet50_v1.5"])[config["RECIPE.classes"]]
    proved = f"{tensors} gradients {summed}scaled by 1/{summary.devices} once"
    mib = numbers * 4 / 2**20 * all_reduces
    program = schema.Program(
        operators=operators, all_reduces=all_reduces, all_reduce_mib=mib, fused={}, verified=[proved]
    )
    log.section(schema.PROGRAM, program)


def run(
    *,
    benchmark: str = "resnet",
    division: str = "open",
    seed: int = 1,
    samples: tuple[int, int] = (1437, 360),
    epochs: int = 3,
    eval_every: int = 1,
    accuracies: tuple[float, ...] = (),
    status: str = "success",
    batch: int = 16,
    devices: int = 2,
    epoch_ms: int = 36_000,
    hyperparameters: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    platform: str = "CPU",
    org: str = "Example",
    target: float | None = 0.9,
    cores: int = 2,
    windows: int = 2,
) -> str:
    """A log as the training side writes it; the default is a run on the embedded digits.

    Runs of other seeds start at another hour, and reach other accuracies where none are given.
    """
    log = Log()
    log.now_ms += (seed - 1) * 3_600_000
    model = "resnet50_v1.5" if benchmark == "resnet" else "fcn_hrnetw18"
    said = run_summary(**{"devices": devices, "batch_per_device": batch, "model": model} | (summary or {}))
    hyperparameters, global_batch = hyperparameters or SGD, batch * devices
    hyperparameters = {"model_bn_span": batch, **hyperparameters}  # each device normalizes by its own images
    steps = samples[0] // global_batch
    print_steps = max(1, math.ceil(steps / windows))  # of an epoch
    config: dict[str, Any] = {"SEED": seed, "PRINT_STEPS": print_steps, "RECIPE.target_top1": target}
    config["RECIPE.eval_every_epochs"] = eval_every
    config |= _data(said.model, samples)
    config |= _recipe(hyperparameters) | {"RECIPE.epochs": epochs}
    if benchmark == "resnet":
        config["RECIPE.image_size"] = 64
    else:
        config |= {"RECIPE.image_height": 64, "RECIPE.image_width": 128, "RECIPE.sync_bn": False}
    config |= {"SUBMISSION_ORG": org, "SUBMISSION_DIVISION": division}
    config |= {"SUBMISSION_STATUS": "research", "SUBMISSION_PLATFORM": "" if platform == "CPU" else platform}
    _header(log, said, config, samples, cores)
    described = {"benchmark": benchmark, "org": org, "division": division, "status": "research", "platform": platform}
    log.facts({f"submission_{name}": value for name, value in described.items()})
    log.event(schema.CACHE_CLEAR, True, schema.CacheState(node="node0", status="done", by="rank"))
    log.mark(schema.INIT_START)
    log.facts({"seed": seed, "global_batch_size": global_batch, "gradient_accumulation_steps": 1})
    log.facts({**hyperparameters, "train_samples": samples[0], "eval_samples": samples[1]})
    log.now_ms += 20_000
    log.mark(schema.INIT_STOP)
    log.event(schema.RUN_SUMMARY, said)
    started_ms = log.now_ms
    log.mark(schema.RUN_START)
    scores = iter(accuracies or _rising(epochs // eval_every, samples[1], (seed - 1) % 5))
    # Blocks of epochs, each with an evaluation at its end but for a last one that is shorter.
    for first in range(1, epochs + 1, eval_every):
        last = min(first + eval_every - 1, epochs)
        block, evaluated = InBlock(first_epoch_num=first, epoch_count=last - first + 1), InEpoch(epoch_num=last)
        log.mark(schema.BLOCK_START, block)
        for epoch in range(first, last + 1):
            _epoch(
                log,
                epoch,
                steps=steps,
                print_steps=print_steps,
                batch=global_batch,
                ranks=devices,
                epoch_ms=epoch_ms,
                seed=seed,
            )
        if last % eval_every == 0:
            log.mark(schema.EVAL_START, evaluated)
            log.now_ms += 2_000
            log.mark(schema.EVAL_STOP, evaluated)
            log.event(schema.EVAL_ACCURACY, next(scores), evaluated)
        log.mark(schema.BLOCK_STOP, block)
    if status == "aborted":
        log.event(schema.ABORT_REASON, "stopped by signal TERM")
    log.mark(schema.RUN_STOP, schema.Ended(status=status))
    if status == "success":
        measured: dict[str, Any] = dict.fromkeys(schema.TelemetrySummary._fields)
        measured |= {"samples": int(log.now_ms - started_ms) // 1000, "sampler_cpu_share": 0.001}
        log.event(schema.TELEMETRY_SUMMARY, schema.TelemetrySummary(**measured))
    log.say("done")
    return log.text.getvalue()


def _recipe(said: dict[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that gives these hyperparameters."""
    kind = said["opt_name"]
    warmup = said[schema.OPTIMIZERS[kind].warmup_epochs.key]
    return {
        **{f"RECIPE.{name}": said[f"{kind}_opt_{name}"] for name in ("base_learning_rate", "end_learning_rate")},
        **{f"RECIPE.optimizer.{name}": said[f"{kind}_opt_{name}"] for name in ("momentum", "weight_decay")},
        "RECIPE.power": said[f"{kind}_opt_learning_rate_decay_poly_power"],
        **{"RECIPE.optimizer.kind": kind, "RECIPE.warmup_epochs": warmup},
        **{"RECIPE.schedule": "polynomial", "RECIPE.decay_ends": said[f"{kind}_opt_learning_rate_decay_steps"]},
    }


def _epoch(
    log: Log, epoch: int, *, steps: int, print_steps: int, batch: int, ranks: int, epoch_ms: int, seed: int
) -> None:
    log.mark(schema.EPOCH_START, InEpoch(epoch_num=epoch))
    counts = [min(print_steps, steps - done) for done in range(0, steps, print_steps)]
    step, time_s = (epoch - 1) * steps, epoch_ms / 1000 / len(counts)
    for count in counts:
        step += count
        log.now_ms += epoch_ms // len(counts)
        loss = 1.5 + seed / 1000 + 1 / step
        done = cpu_window(steps=count, images=count * batch, time_s=time_s, loss=loss)
        if ranks > 1:
            log.rank_times(done, step=step)
        log.window(done, step=step, epoch=epoch)
        log.say(f"epoch {epoch} step {step} loss {loss:.4f}")
    rate = schema.EpochThroughput(
        images=steps * batch,
        time_s=epoch_ms / 1000,
        images_per_s=steps * batch / epoch_ms * 1000,
        data_wait_s=0.01 * len(counts),
    )
    log.event(schema.EPOCH_THROUGHPUT, rate, InEpoch(epoch_num=epoch))
    log.mark(schema.EPOCH_STOP, InEpoch(epoch_num=epoch))


def _rising(count: int, samples: int, fewer: int) -> list[float]:
    return [(round(samples * 0.96 * (i + 1) / count) - fewer) / samples for i in range(count)]


LARS = {
    "opt_name": "lars",
    "lars_epsilon": 0,
    "lars_opt_weight_decay": 5e-05,
    "lars_opt_momentum": 0.9,
    "lars_opt_base_learning_rate": 10.5,
    "lars_opt_end_learning_rate": 0.0001,
    "lars_opt_learning_rate_decay_poly_power": 2,
    "lars_opt_learning_rate_decay_steps": 14523,
    "lars_opt_learning_rate_warmup_epochs": 2,
}
SGD = {
    "opt_name": "sgd",
    "sgd_opt_base_learning_rate": 0.1,
    "sgd_opt_end_learning_rate": 0.0001,
    "sgd_opt_learning_rate_decay_poly_power": 2,
    "sgd_opt_learning_rate_decay_steps": 100,
    "sgd_opt_weight_decay": 0.0001,
    "sgd_opt_momentum": 0.9,
    "opt_learning_rate_warmup_epochs": 5,
}


_IMAGES_RIGHT = (15_000, 20_000, 25_000, 27_500, 30_000, 35_000, 36_500, 37_500, 38_020)  # of 50,000


def closed_run(**changes: Any) -> str:
    """A closed run on ImageNet: 36 epochs at the global batch of a reference point."""
    seed = changes.get("seed", 1)
    more = seed % 50 * 10
    accuracies = [(images + more * (1 + i % 2)) / 50_000 for i, images in enumerate(_IMAGES_RIGHT)]
    accuracies[0] += seed % 8 * 0.01  # published runs differ by 0.0066 or more in one evaluation
    fields: dict[str, Any] = {
        **{"division": "closed", "samples": (1281167, 50000), "epochs": 36, "eval_every": 4},
        **{"batch": 408, "devices": 8, "cores": 4096},  # as many cores as its rate needs
        "accuracies": tuple(round(accuracy, 5) for accuracy in accuracies),
        "hyperparameters": LARS,
    }
    return run(**{**fields, **changes})


def closed_hrnet_run(**changes: Any) -> str:
    """A closed run of FCN-HRNetW18 on Cityscapes."""
    recipe = SGD | {"sgd_opt_base_learning_rate": 0.01, "sgd_opt_end_learning_rate": 0.0}
    recipe |= {"sgd_opt_learning_rate_decay_poly_power": 0.9, "sgd_opt_learning_rate_decay_steps": 80_000}
    recipe |= {"sgd_opt_weight_decay": 0.0005, "opt_learning_rate_warmup_epochs": 0}
    fields: dict[str, Any] = {"division": "closed", "samples": (2975, 500)}
    fields["accuracies"] = (0.6 + changes.get("seed", 1) % 50 * 0.001, 0.7, 0.79123)
    return hrnet_run(**{**fields, "hyperparameters": recipe, **changes})


def hrnet_run(**changes: Any) -> str:
    """An open run of FCN-HRNetW18 on a small data set."""
    return run(**{"benchmark": "hrnet", "samples": (20, 50), "batch": 2, **changes})


# ---- step times that are known, as what really happened in a run

STARTS_MS = itertools.count(1_690_530_600_000, 3_600_000)  # no two logs are of the same run


@dataclass(frozen=True, kw_only=True)
class Run:
    """What really happened: seconds of each step, the wait for data inside it, and the size of the job."""

    times: Sequence[float]
    waits: Sequence[float]
    devices: int = 8
    batch: int = 32
    every: int = 10
    epoch_steps: int | None = None  # None: one epoch

    @property
    def global_batch(self) -> int:
        return self.devices * self.batch

    def epochs(self) -> list[tuple[int, list[tuple[float, float]]]]:
        """(epoch from 0, its steps as (time, wait))."""
        steps = list(zip(self.times, self.waits, strict=True))
        size = self.epoch_steps or len(steps)
        return [(at // size, steps[at : at + size]) for at in range(0, len(steps), size)]


def run_of(times: Sequence[float], *, share: float = 0.02, **size: int) -> Run:
    """A run of these step times, `share` of each waiting for data."""
    return Run(times=list(times), waits=[time * share for time in times], **size)  # type: ignore[arg-type]


def steady(steps: int = 120, seconds: float = 0.5, *, jitter: float = 0.01) -> list[float]:
    """Step times around `seconds` that repeat in no short pattern; the first one is slow, as first steps are."""
    return [seconds * (3 if step == 0 else 1 + jitter * math.sin(step * step)) for step in range(steps)]


def mllog(
    run: Run,
    *,
    status: str | None = "success",
    mode: str = "train",
    warm_up: int | None = None,
    header: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    accuracy: float = 0.76,
    telemetry: bool = False,
    **summary: Any,
) -> str:
    """Our own log: run_summary, a step_window every `every` steps, run_start and run_stop.

    `header` has further sections, `facts` events before the run; without a status it has no end.
    """
    log = Log(tick_ms=0)
    log.now_ms = next(STARTS_MS)
    usual = {"log": schema.Format(), "packages": {"paddlepaddle-gpu": "2.6.2", "numpy": "1.26.4"}}
    for name, value in (usual | (header or {})).items():
        log.section(schema.SECTIONS[name], value)
    log.mllog.event("weights_initialization", metadata={"tensor": "conv0_weight"}, time_ms=int(log.now_ms))
    for key, value in (facts or {}).items():
        log.event(schema.EVENTS[key], value)  # type: ignore[arg-type]
    sizes = {"devices": run.devices, "batch_per_device": run.batch, "mode": mode}
    log.event(schema.RUN_SUMMARY, run_summary(**sizes, **summary))
    log.mark(schema.RUN_START)
    done = 0
    for number, steps in run.epochs():
        epoch = schema.InEpoch(epoch_num=number + 1)
        log.mark(schema.EPOCH_START, epoch)
        for at in range(0, len(steps) - run.every + 1, run.every):
            part = steps[at : at + run.every]
            seconds, waited = (sum(values) for values in zip(*part, strict=True))
            done += run.every
            log.now_ms += seconds * 1000
            images = run.every * run.global_batch
            measured = cpu_window(steps=run.every, images=images, time_s=seconds, data_wait_s=waited, loss=6.9)
            if telemetry:
                measured = measured._replace(gpu_memory_mib=1000.0 + done / run.every, power_w=200.0)
            of_warm_up = done <= (2 * run.every if warm_up is None else warm_up)
            phase = "train" if mode == "train" else ("warmup" if of_warm_up else "measured")
            log.window(measured, step=done, epoch=number + 1, phase=phase)
            log.say(f"step {done}: human line, ips: 12 samples/sec.")
        log.mark(schema.EPOCH_STOP, epoch)
        if mode == "train":
            log.event(schema.EVAL_ACCURACY, accuracy, epoch)
    if telemetry:
        log.event(schema.TELEMETRY_SUMMARY, {"peak_gpu_temperature_c": 71})
    if status is not None:
        log.mark(schema.RUN_STOP, schema.Ended(status=status))
    return log.text.getvalue()
