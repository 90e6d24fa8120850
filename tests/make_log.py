"""Well-formed logs of ours, written by the schema: the tools must take them, tests alter them."""

import io
import json
import logging
from typing import Any

from mlperf_logging.mllog.mllog import MLLogger

from runlog import schema
from runlog.json_schema import as_json
from runlog.schema import InBlock, InEpoch

CLOCK_START_MS = 1_700_000_000_000


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

    def window(self, window: schema.StepWindow, *, step: int, epoch: int, phase: str = "train") -> None:
        self.event(schema.STEP_WINDOW, window, schema.InWindow(step=step, epoch_num=epoch, phase=phase))


def run_summary(**changes: Any) -> schema.RunSummary:
    """That of a run of two devices on the embedded digits."""
    fields: dict[str, Any] = {
        **{"devices": 2, "nodes": 1, "batch_per_device": 16, "precision": "fp32", "math_mode": "fp32"},
        **{"mode": "train", "data": "real", "resumed": False, "profiled": False},
        **{"framework": "paddlepaddle 2.6.2", "model": "resnet50_v1.5"},
    }
    return schema.RunSummary(**(fields | changes))


def window(*, steps: int, images: int, time_s: float, data_wait_s: float = 0.01, loss: float = 1.5) -> Any:
    """One of a run without a GPU."""
    return schema.StepWindow(
        steps=steps,
        images=images,
        time_s=time_s,
        data_wait_s=data_wait_s,
        loss=loss,
        gpu_memory_mib=None,
        power_w=None,
    )


def _header(
    log: Log, *, dataset: str, samples: tuple[int, int], seed: int, batch: int, model: str, target: float | None
) -> None:
    log.section(schema.LOG, schema.Format())
    source = schema.Source(commit="0" * 40, dirty=False, lock_sha256="1" * 64, image_digest=None)
    log.section(schema.SOURCE, source)
    config = {
        "BATCHSIZE": schema.Setting(value=batch, origin="config_CPU.sh"),
        "SEED": schema.Setting(value=seed, origin="environment"),
        "RECIPE.target_top1": schema.Setting(value=target, origin=f"paddle_{model}/config.py"),
        "RECIPE.base_learning_rate": schema.Setting(value=0.1, origin=f"paddle_{model}/config.py"),
    }
    log.section(schema.CONFIG, config)
    log.section(schema.ENVIRONMENT, {"OMP_NUM_THREADS": "1"})
    log.section(schema.PACKAGES, {"paddlepaddle-gpu": "2.6.2", "mlperf-logging": "4.1.68"})
    node = schema.Node(
        host="node0", cpu="Example CPU 9000", cores=2, memory_gib=23.4, kernel="6.1", gpus=[], topology=None
    )
    log.section(schema.HARDWARE, schema.Hardware(nodes=[node], math_mode="fp32", device="cpu"))
    data = schema.Dataset(name=dataset, train_samples=samples[0], eval_samples=samples[1], synthetic=False)
    log.section(schema.DATASET, data)
    program = schema.Program(operators={"conv2d": 53}, all_reduces=1, all_reduce_mib=97.5, fused={}, verified=[])
    log.section(schema.PROGRAM, program)


def run(
    *,
    benchmark: str = "resnet",
    division: str = "open",
    seed: int = 1,
    samples: tuple[int, int] = (1437, 360),
    epochs: int = 3,
    eval_every: int = 1,
    accuracies: tuple[float, ...] | None = None,
    status: str = "success",
    batch: int = 16,
    devices: int = 2,
    epoch_ms: int = 36_000,
    hyperparameters: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    platform: str = "CPU",
    org: str = "Example",
    target: float | None = 0.9,
) -> str:
    """A log as the training side writes it; the default is a run on the embedded digits.

    Runs of other seeds start at another hour, and reach other accuracies where none are given.
    """
    log = Log()
    log.now_ms += (seed - 1) * 3_600_000
    folder = "rn50" if benchmark == "resnet" else "hrnet"
    _header(log, dataset="uci-digits-64", samples=samples, seed=seed, batch=batch, model=folder, target=target)
    log.event(schema.SUBMISSION_BENCHMARK, benchmark)
    log.event(schema.SUBMISSION_ORG, org)
    log.event(schema.SUBMISSION_DIVISION, division)
    log.event(schema.SUBMISSION_STATUS, "research")
    log.event(schema.SUBMISSION_PLATFORM, platform)
    log.event(schema.CACHE_CLEAR, True, schema.CacheState(node="node0", status="done", by="rank"))
    log.mark(schema.INIT_START)
    log.event(schema.SEED, seed)
    log.event(schema.GLOBAL_BATCH_SIZE, batch * devices)
    log.event(schema.GRADIENT_ACCUMULATION_STEPS, 1)
    for key, value in (hyperparameters or {"opt_name": "sgd", "sgd_opt_base_learning_rate": 0.1}).items():
        point = schema.EVENTS[key]
        assert isinstance(point, schema.Point)
        log.event(point, value)
    log.event(schema.TRAIN_SAMPLES, samples[0])
    log.event(schema.EVAL_SAMPLES, samples[1])
    log.now_ms += 20_000
    log.mark(schema.INIT_STOP)
    log.event(schema.RUN_SUMMARY, as_json(run_summary(devices=devices, batch_per_device=batch)) | (summary or {}))
    log.mark(schema.RUN_START)
    step, first, score = 0, 1, iter(accuracies or _rising(epochs // eval_every, samples[1], (seed - 1) % 5))
    steps = samples[0] // (batch * devices)
    images = steps * batch * devices
    for epoch in range(1, epochs + 1):
        if epoch == first:
            block = InBlock(first_epoch_num=first, epoch_count=min(eval_every, epochs + 1 - first))
            log.mark(schema.BLOCK_START, block)
        log.mark(schema.EPOCH_START, InEpoch(epoch_num=epoch))
        start_ms = log.now_ms - 1
        for _ in range(2):
            step += steps // 2
            log.now_ms += epoch_ms // 2
            log.window(window(steps=steps // 2, images=images // 2, time_s=epoch_ms / 2000), step=step, epoch=epoch)
            log.say(f"epoch {epoch} step {step} loss 1.5")
        time_s = (log.now_ms - start_ms) / 1000
        rate = schema.EpochThroughput(images=images, time_s=time_s, images_per_s=images / time_s, data_wait_s=0.02)
        log.event(schema.EPOCH_THROUGHPUT, rate, InEpoch(epoch_num=epoch))
        log.mark(schema.EPOCH_STOP, InEpoch(epoch_num=epoch))
        if epoch % eval_every == 0:
            log.mark(schema.EVAL_START, InEpoch(epoch_num=epoch))
            log.now_ms += 2_000
            log.mark(schema.EVAL_STOP, InEpoch(epoch_num=epoch))
            log.event(schema.EVAL_ACCURACY, next(score), InEpoch(epoch_num=epoch))
        if epoch == first + eval_every - 1 or epoch == epochs:
            log.mark(schema.BLOCK_STOP, block)
            first = epoch + 1
    log.mark(schema.RUN_STOP, schema.Ended(status=status))
    log.say("done")
    return log.text.getvalue()


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
    "model_bn_span": 204,
}
SGD = {
    "opt_name": "sgd",
    "sgd_opt_base_learning_rate": 0.1,
    "sgd_opt_end_learning_rate": 0.0001,
    "sgd_opt_learning_rate_decay_poly_power": 2,
    "sgd_opt_learning_rate_decay_steps": 100,
    "sgd_opt_weight_decay": 0.0001,
    "sgd_opt_momentum": 0.9,
    "model_bn_span": 32,
    "opt_learning_rate_warmup_epochs": 5,
}


def closed_run(**changes: Any) -> str:
    """A closed run on ImageNet: 36 epochs at the global batch of a reference point."""
    fields: dict[str, Any] = {
        "division": "closed",
        "samples": (1281167, 50000),
        "epochs": 36,
        "eval_every": 4,
        "accuracies": (0.3 + changes.get("seed", 1) % 50 * 0.001, 0.4, 0.5, 0.55, 0.6, 0.7, 0.73, 0.75, 0.7604),
        "batch": 408,
        "devices": 8,
        "hyperparameters": LARS,
    }
    return run(**{**fields, **changes})


def closed_hrnet_run(**changes: Any) -> str:
    """A closed run of FCN-HRNetW18 on Cityscapes."""
    recipe = {
        "opt_name": "sgd",
        "sgd_opt_base_learning_rate": 0.01,
        "sgd_opt_end_learning_rate": 0.0,
        "sgd_opt_learning_rate_decay_poly_power": 0.9,
        "sgd_opt_learning_rate_decay_steps": 80_000,
        "sgd_opt_weight_decay": 0.0005,
        "sgd_opt_momentum": 0.9,
    }
    fields: dict[str, Any] = {"division": "closed", "samples": (2975, 500)}
    fields["accuracies"] = (0.6 + changes.get("seed", 1) % 50 * 0.001, 0.7, 0.79123)
    return hrnet_run(**{**fields, "hyperparameters": recipe, **changes})


def hrnet_run(**changes: Any) -> str:
    """An open run of FCN-HRNetW18 on a small data set."""
    return run(**{"benchmark": "hrnet", "samples": (20, 50), "batch": 2, **changes})
