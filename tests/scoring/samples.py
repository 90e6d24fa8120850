"""Logs made as each tool's own code prints them, from step times that are known.

Every writer follows the cited source of the tool (which meters it keeps, when it resets them, what digits it
prints), so that the tests hold an importer to the tool and not to itself.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.scoring.sample_run import START, Run, dll, mean_rate, mllog, rows, run_of, stamped, steady  # noqa: F401

WRITERS: dict[str, Callable[[Run], str]] = {"mllog": mllog}


def writer(lines: Callable[[Run], Iterator[str]]) -> Callable[[Run], str]:
    """The text of a generator's lines; the format has the generator's name."""

    def text(run: Run) -> str:
        return "".join(f"{line}\n" for line in lines(run))

    WRITERS[lines.__name__] = text
    return text


def clas_config(run: Run, more: str = "") -> str:
    """The configuration as PaddleClas prints it, behind a stamp."""
    config = f"""\
Global :
    epochs : {len(run.epochs())}
{more}DataLoader :
    Train :
        sampler :
            batch_size : {run.batch}
    Eval :
        sampler :
            batch_size : 7
Infer :
    infer_imgs : docs/ips: 5.demo.jpg"""
    return "\n".join(
        f"[2023/07/28 07:49:52] ppcls INFO: {line}{' ' * line.endswith(':')}" for line in config.split("\n")
    )


@writer
def paddleclas_static(run: Run) -> Iterator[str]:
    """PaddleClas ppcls/static/program.py `run`, behind paddle.distributed.launch."""
    yield "LAUNCH INFO 2023-07-28 07:49:49,628 nnodes: 1"
    yield f"LAUNCH INFO 2023-07-28 07:49:49,637 Run Pod: fcxkfi, replicas {run.devices}, status ready"
    yield "I0728 --ips:0,1,2,3 will change into relative_ips:[0, 1, 2, 3]"
    yield clas_config(run)
    yield (
        "W0728 07:50:13.7 20850 gpu_resources.cc:119] Please NOTE: device: 0, GPU Compute Capability: 7.0, "
        "Driver API Version: 12.0, Runtime API Version: 11.2"
    )
    elapsed = 0.0
    for epoch, steps in run.epochs():
        count, total, waited = 0, 0.0, 0.0
        for index, (time, wait) in enumerate(steps, 1):
            if index == 5:
                count, total, waited = 0, 0.0, 0.0
            count, total, waited, elapsed = count + 1, total + time, waited + wait, elapsed + time
            stamp = f"[{stamped(elapsed, '%Y/%m/%d %H:%M:%S')}] ppcls INFO: "
            costs = f"batch_cost: {total / count:.5f} s, reader_cost: {waited / count:.5f} s, "
            if index % run.every == 0:
                yield (
                    f"{stamp}epoch:{epoch:<3d} train step:{index:<4d} lr: 0.100000, loss:  6.9950 top1:  0.0039 "
                    f"top5:  0.0078 {costs}ips: {run.batch / (total / count):.5f} samples/sec."
                )
        yield f"{stamp}END epoch:{epoch:<3d} train  loss:  6.9075 top1:  0.0035 {costs}batch_cost_sum: {total:.5f} s,"


@writer
def paddleclas_dygraph(run: Run) -> Iterator[str]:
    """PaddleClas ppcls/engine/train/train.py `train_epoch` and utils.py `log_info`."""
    yield f"INFO 2023-07-28 07:49:49 launch_utils.py:561] PADDLE_TRAINERS_NUM         {run.devices}      |"
    yield clas_config(run, "AMP :\n    level : O2\n")
    yield "[2023/07/28 07:49:52] ppcls INFO: train with paddle 2.5.0 and device Place(gpu:0)"
    elapsed = 0.0
    of = len(run.epochs())
    for epoch, steps in run.epochs():
        count, total, waited = 0, 0.0, 0.0
        for index, (time, wait) in enumerate(steps):
            if index == 5:
                count, total, waited = 0, 0.0, 0.0
            count, total, waited, elapsed = count + 1, total + time, waited + wait, elapsed + time
            stamp = f"[{stamped(elapsed, '%Y/%m/%d %H:%M:%S')}] ppcls INFO: [Train][Epoch {epoch + 1}/{of}]"
            if index % run.every == 0:
                yield (
                    f"{stamp}[Iter: {index}/{len(steps)}]lr(PiecewiseDecay): 0.10000000, top1: 0.00391, CELoss: 6.99, "
                    f"loss: 6.99500, batch_cost: {total / count:.5f}s, reader_cost: {waited / count:.5f}, "
                    f"ips: {run.batch / (total / count):.5f} samples/s, eta: 0:04:20"
                )
                count, total, waited = 0, 0.0, 0.0
        yield f"{stamp}[Avg]loss: 6.9"
        yield f"[..] ppcls INFO: [Eval][Epoch {epoch + 1}][Avg]CELoss: 1.2, loss: 1.2, top1: 0.71234, top5: 0.9"


@writer
def paddleseg(run: Run) -> Iterator[str]:
    """PaddleSeg paddleseg/core/train.py `train`."""
    yield f"""\
grep: warning: GREP_OPTIONS is deprecated; please use an alias or script
LAUNCH INFO 2023-07-28 07:49:49,637 Run Pod: fcxkfi, replicas {run.devices}, status ready
LAUNCH INFO 2023-07-28 07:49:49,628 nnodes: 1
2023-07-27 12:48:23 [INFO]\t
GPUs used: {run.devices}
PaddlePaddle: 2.5.0
batch_size: {run.batch}
model:
  backbone:
    type: HRNet_W18
  type: FCN"""
    for index, elapsed, total, waited in rows(run):
        yield (
            f"{stamped(elapsed, '%Y-%m-%d %H:%M:%S')} [INFO]\t[TRAIN] epoch: 1, iter: {index}/{len(run.times)}, "
            f"loss: 2.2142, lr: 0.009684, batch_cost: {total / run.every:.4f}, reader_cost: {waited / run.every:.5f}, "
            f"ips: {run.every * run.batch / total:.4f} samples/sec | ETA 00:04:20"
        )
    yield "2023-07-27 12:51:23 [INFO]\t[EVAL] #Images: 500 mIoU: 0.7897 Acc: 0.9 Kappa: 0.9 Dice: 0.8"


@writer
def mmseg(run: Run) -> Iterator[str]:
    """mmcv/runner/hooks/logger/text.py with the IterBasedRunner."""
    yield f"""\
GPU 0,1,2,3,4,5,6,7: Tesla V100-SXM2-32GB
PyTorch: 1.11.0a0+b6df043
    samples_per_gpu={run.batch},
gpu_ids = range(0, {run.devices})
2023-08-03 02:17:59,035 - mmseg - INFO - workflow: [('train', 1)], max: {len(run.times)} iters"""
    for index, elapsed, total, waited in rows(run):
        yield (
            f"{stamped(elapsed, '%Y-%m-%d %H:%M:%S')},649 - mmseg - INFO - Iter [{index}/{len(run.times)}]\t"
            f"lr: 9.851e-03, eta: 0:15:52, time: {total / run.every:.3f}, data_time: {waited / run.every:.3f}, "
            f"memory: 13479, decode.loss_ce: 2.6493, decode.acc_seg: 25.3587, loss: 2.6493"
        )


@writer
def paddle18(run: Run) -> Iterator[str]:
    """PaddleCV/image_classification/train.py of PaddlePaddle/models 1.8, with Python's logging stamps."""
    yield "-----------  Configuration Arguments -----------\nmodel: ResNet50\nuse_fp16: False\nbatch_size: 999"
    elapsed = 0.0
    for epoch, steps in run.epochs():
        for index, (time, _) in enumerate(steps):
            elapsed += time
            yield (
                f"{stamped(elapsed, '%Y-%m-%d %H:%M:%S,%f')[:-3]}-INFO: [Pass {epoch}, train batch {index}] "
                f"\tloss 6.99500, acc1 0.00391, acc5 0.00781, lr 0.10000, elapse {time:2.4f} sec"
            )


@writer
def oneflow(run: Run) -> Iterator[str]:
    """OneFlow-Benchmark Classification/cnns/util.py `Metric`."""
    yield f"batch_size_per_device = {run.batch}\nnum_nodes = 1\ngpu_num_per_node = {run.devices}"
    yield "Epoch 0: ips: 3 not a rate"
    for index, elapsed, total, _ in rows(run):
        yield (
            f"train: epoch 0, iter {index}, loss: 6.505637, top_1: 0.000000, top_k: 0.000000, "
            f"samples/s: {run.every * run.global_batch / total:.3f} [{1597933942.98 + elapsed:.2f}]"
        )
    yield "validation: epoch 0, iter 50, top_1: 0.712340, top_k: 0.9, samples/s: 2000.000"


@writer
def nvidia_pytorch(run: Run) -> Iterator[str]:
    """DeepLearningExamples PyTorch/Classification/ConvNets: a row an iteration, dllogger's standard output."""
    yield (
        f"DLL 2023-08-04 05:47:49.926771 - PARAMETER arch : resnet50  batch_size : {run.batch}  amp : True  "
        f"local_rank : 0  gpu : 0  world_size : {run.devices} "
    )
    elapsed = 0.0
    for index, (time, wait) in enumerate(zip(run.times, run.waits, strict=True), 1):
        elapsed += time
        yield (
            f"{dll(elapsed)}Epoch: 0 Iteration: {index}  train.loss : 7.08354 None "
            f"train.compute_ips : {run.global_batch / (time - wait):.2f} images/s "
            f"train.total_ips : {run.global_batch / time:.2f} images/s train.lr : 0.1 "
        )
    means = "train.total_ips : 782.08 images/s val.top1 : 71.234 % val.top5 : None %"
    yield f"{dll(elapsed)}Epoch: 0  train.loss : 6.1 None {means}"
    yield f"{dll(elapsed)}Summary: train.total_ips : {mean_rate(run, 1):.2f} images/s"


@writer
def nvidia_tensorflow(run: Run) -> Iterator[str]:
    """DeepLearningExamples TensorFlow/Classification/ConvNets: total_ips every display_every steps."""
    yield (
        f"DLL 2022-11-24 04:09:31.727199 - PARAMETER arch : resnet50  mode : training_benchmark  "
        f"batch_size : {run.batch}  display_every : 10  amp : False "
    )
    yield f"Num GPUs {run.devices}\nPer-GPU Batch Size {run.batch}"
    for index, elapsed, total, _ in rows(run):
        yield f"{dll(elapsed)}(0, {index - 1}) total_ips : {run.every * run.global_batch / total!r} "
    yield "Ending Model Training ..."
    yield f"{dll(sum(run.times))}() train_throughput : {mean_rate(run)!r} images/s"


def closing_table(run: Run) -> str:
    """What NVIDIA's MXNet benchmark.py prints last."""
    head, row = str(run.batch).center(11), str(run.devices).center(11)
    return f"           |{head}|\n{'-' * 24}\n{row}|{'389.54'.center(11)}|\n"


@writer
def nvidia_mxnet(run: Run) -> Iterator[str]:
    """DeepLearningExamples MxNet/Classification/RN50v1.5/fit.py under mpirun, with benchmark.py's table."""
    tag = "[1,0]<stdout>:"
    yield (
        f"{tag}DLL 2023-07-31 09:00:37.508909 - PARAMETER arch : resnetv15  dtype : float32  amp : False  "
        f"batch_size : {run.global_batch}  gpus : {list(range(run.devices))}  image_shape : [3, 224, 224] "
    )
    yield "[1,0]<stderr>:[09:00:37] ../src/storage/storage.cc[1,0]<stderr>::196: Using Pooled (Naive) StorageManager"
    elapsed = 0.0
    for epoch, steps in run.epochs():
        for index, of_epoch, total, _ in rows(run, steps):
            yield (
                f"{tag}{dll(elapsed + of_epoch)}Epoch: {epoch} Iteration: {index - 1}  train.loss : 7.100936794281006  "
                f"train.ips : {run.every * run.global_batch / total!r} images/s train.lr : 0.0019456 "
            )
        elapsed += sum(time for time, _ in steps)
        kept = [time for time, _ in steps[min(len(steps) // 10, 100) :]]
        rate = run.global_batch * len(kept) / sum(kept)
        yield f"{tag}{dll(elapsed)}Epoch: {epoch}  train.loss : 6.82  train.ips : {rate!r} images/s"
    yield f"{tag}{dll(elapsed)}Summary: train.ips : {mean_rate(run)!r} images/s"
    yield f"train.ips\n{closing_table(run)}"


@writer
def nvidia_paddle(run: Run) -> Iterator[str]:
    """DeepLearningExamples PaddlePaddle/Classification/RN50v1.5/program.py: values of the last step, not means."""
    elapsed = 0.0
    for epoch, steps in run.epochs():
        for index, (time, wait) in enumerate(steps, 1):
            elapsed += time
            if index % run.every == 0:
                yield (
                    f"{dll(elapsed)}Epoch: {epoch} Iteration: {index}  "
                    f"train.loss : 6.9  train.top1 : 0.004  train.top5 : 0.008  train.data_time : {wait!r}  "
                    f"train.compute_time : {time - wait!r}  train.batch_time : {time!r}  "
                    f"train.ips : {run.global_batch / time!r}  train.lr : 0.256 "
                )
        total = sum(time for time, _ in steps)
        rate = run.global_batch * len(steps) / total
        yield f"{dll(elapsed)}Epoch: {epoch}  train.loss : 6.9  train.epoch_time : {total!r}  train.ips : {rate!r} "
    yield f"{dll(elapsed)}Summary: train.loss : 6.9  train.ips : {mean_rate(run)!r} "


@writer
def nvidia_json(run: Run) -> Iterator[str]:
    """DLLogger's JSONStreamBackend under PyTorch/Classification/ConvNets."""

    def line(step: object, data: dict[str, object]) -> str:
        stamp = START + datetime.timedelta(seconds=elapsed)
        said = {
            "timestamp": f"{stamp.timestamp():.6f}",
            "elapsedtime": f"{elapsed:.6f}",
            "datetime": f"{stamp:%Y-%m-%d %H:%M:%S.%f}",
            "type": "LOG",
        }
        return f"DLLL {json.dumps(said | {'step': step, 'data': data})}"

    elapsed = 0.0
    yield line("PARAMETER", {"arch": "resnet50", "batch_size": run.batch, "amp": True, "world_size": run.devices})
    for index, (time, wait) in enumerate(zip(run.times, run.waits, strict=True), 1):
        elapsed += time
        rates = {"train.compute_ips": run.global_batch / (time - wait), "train.total_ips": run.global_batch / time}
        yield line([0, index], {"train.loss": 7.08354, **rates, "train.lr": 0.1})
    yield line([0], {"train.loss": 6.1, "train.total_ips": 782.08, "val.top1": 71.234})
    yield line([], {"train.total_ips": mean_rate(run, 1)})


@writer
def nvidia_nvlog(run: Run) -> Iterator[str]:
    """DeepLearningExamples TensorFlow before DLLogger: benchmark_hooks.py prints a row on two lines."""
    yield f"""\
:::NVLOGv0.2.3 None 1621940020.763555050 (resnet_v1_5.py:94) Name: "resnet50_v1.5"
:::NVLOGv0.2.3 None 1621940020.961197376 (runner.py:393) Num GPUs: {run.devices}
:::NVLOGv0.2.3 None 1621940020.961632444 (runner.py:394) Per-GPU Batch Size: {run.batch}"""
    for index, elapsed, total, _ in rows(run):
        head = f":::NVLOGv0.2.3 resnet {1621940023 + elapsed:.9f} (benchmark_hooks.py"
        yield f"{head}:59) iteration: {index - 1}"
        yield f"{head}:60) total_ips: {run.every * run.global_batch / total!r}"
    head = ":::NVLOGv0.2.3 resnet 1621940211.382129908 (benchmark_hooks.py"
    yield f"{head}:66) Average total_ips: {mean_rate(run)!r}"


@writer
def mmcv_json(run: Run) -> Iterator[str]:
    """mmcv/runner/hooks/logger/text.py `_dump_log` with the EpochBasedRunner: `iter` starts anew in each epoch."""
    gpus = ",".join(map(str, range(run.devices)))
    said = {
        "env_info": f"sys.platform: linux\nGPU {gpus}: Tesla V100-SXM2-32GB\nPyTorch: 1.11.0a0+b6df043",
        "config": f"data = dict(\n    samples_per_gpu={run.batch},\ngpu_ids = range(0, {run.devices})\n",
        "seed": 0,
    }
    yield json.dumps(said)
    for epoch, steps in run.epochs():
        for index, _, total, waited in rows(run, steps):
            row = {"mode": "train", "epoch": epoch + 1, "iter": index, "lr": 0.00985, "memory": 13479}
            row |= {"data_time": round(waited / run.every, 5), "decode.loss_ce": 2.6493, "loss": 2.6493}
            yield json.dumps(row | {"time": round(total / run.every, 5)})
        yield json.dumps({"mode": "val", "epoch": epoch + 1, "iter": 500, "lr": 0.00985, "mIoU": 0.7161})


@writer
def nvidia_mxnet_speed(run: Run) -> Iterator[str]:
    """DeepLearningExamples MxNet/Classification/RN50v1.5/fit.py before DLLogger, each rank in its own words."""
    for rank in range(run.devices):
        yield (
            f"[1,{rank}]<stderr>:2023-07-28 07:49:59,467:INFO: Start with arguments Namespace(amp=False, "
            f"arch='resnetv15', batch_size={run.global_batch}, dtype='float32', gpus={list(range(run.devices))})"
        )
    elapsed = 0.0
    for epoch, steps in run.epochs():
        for index, of_epoch, total, _ in rows(run, steps):
            span = f"Batch [{index - run.every}-{index - 1}]"
            row = f"Epoch[{epoch}] {span}\tSpeed: {run.every * run.global_batch / total!r}"
            for rank in (1, 0):
                stamp = stamped(elapsed + of_epoch, "%Y-%m-%d %H:%M:%S,%f")[:-3]
                yield f"[1,{rank}]<stderr>:{stamp}:INFO: {row} samples/sec\tLR: 0.0039936\t"
        elapsed += sum(time for time, _ in steps)
    yield "[1,0]<stderr>:2023-07-28 08:49:59,467:INFO: Experiment took: 146.61724376678467 sec"
    yield f"train.total_ips\n{closing_table(run)}"


@writer
def gluoncv(run: Run) -> Iterator[str]:
    """GluonCV's scripts/classification/imagenet/train_imagenet.py."""
    yield (
        f"Namespace(batch_norm=False, batch_size={run.batch}, dtype='float32', model='resnet50_v1b', "
        f"num_epochs={len(run.epochs())}, num_gpus={run.devices}, use_gn=False)"
    )
    for epoch, steps in run.epochs():
        for index, _, total, _ in rows(run, steps):
            rate = run.every * run.global_batch / total
            yield f"Epoch[{epoch}] Batch [{index - 1}]\tSpeed: {rate:.6f} samples/sec\taccuracy=0.000957\t"
        total_s = sum(time for time, _ in steps)
        rate = len(steps) * run.global_batch / total_s
        yield f"[Epoch {epoch}] training: accuracy=0.007411"
        yield f"[Epoch {epoch}] speed: {rate:.6f} samples/sec\ttime cost: {total_s:.6f}"
        yield f"[Epoch {epoch}] validation: err-top1=0.240000 err-top5=0.070000"


@writer
def keras(run: Run) -> Iterator[str]:
    """TensorFlow models official/utils/misc/keras_utils.py `TimeHistory`, with classifier_trainer.py's words."""
    for gpus, batch in ((0, 7), (run.devices, run.batch)):
        yield f"""\
{{'runtime': {{'num_gpus': {gpus},
             'worker_hosts': None}},
 'train_dataset': {{'augmenter': {{'name': None}},
                   'batch_size': {batch},
                   'dtype': 'float32',
                   'use_per_replica_batch_size': True}},
 'validation_dataset': {{'batch_size': 9,
                        'dtype': 'float16'}}}}"""
    stamps = []
    for index, elapsed, total, _ in rows(run):
        stamps.append(f"'BatchTimestamp<batch_index: {index}, timestamp: {1598428690.198 + elapsed}>'")
        yield (
            f"I0728 07:50:52.940788 140244211521280 keras_utils.py:133] TimeHistory: {total:.2f} seconds, "
            f"{run.every * run.global_batch / total:.2f} examples/second between steps {index - run.every} and {index}"
        )
    yield f"{{'accuracy_top_1': 0.76, 'step_timestamp_log': [{', '.join(stamps)}], 'train_finish_time': 1.0}}"


# What a format does not say of the job and must be told.
OPTIONS = {"paddle18": {"devices": 8, "batch_per_device": 32}, "nvidia_paddle": {"devices": 8, "batch_per_device": 32}}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def moved(text: str, by_ms: int, start: int = 0) -> str:
    """An MLLOG log whose clock was set by so much, from the line at the character `start` on."""
    later = re.sub(r'(?<="time_ms": )\d+', lambda found: str(int(found[0]) + by_ms), text[start:])
    return text[:start] + later


def steady_log(folder: Path, name: str, seconds: float = 0.5, writer: str = "mllog", **size: Any) -> Path:
    run = run_of([seconds * (1 + 0.01 * math.sin(at * at)) for at in range(200)], **size)
    return write(folder, name, WRITERS[writer](run))


def folder_of(place: Path, name: str, factors: list[float], devices: int = 8) -> Path:
    folder = place / name
    folder.mkdir()
    for at, factor in enumerate(factors):
        steady_log(folder, f"result_{at}.txt", 0.5 * factor, devices=devices)
    return folder
