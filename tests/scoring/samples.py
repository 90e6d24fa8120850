"""Logs made as each tool's own code prints them, from step times that are known.

Every sample follows the cited source of the tool (which meters it keeps, when it resets them, what digits it
prints), so that the tests hold an importer to the tool and not to itself.
"""

import dataclasses
import datetime
import functools
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scoring.__main__ import main
from scoring.importers import FORMATS
from tests import jobs
from tests.make_log import Run, mllog, run_of, steady  # noqa: F401

START = datetime.datetime(2023, 7, 28, 7, 50, 0)


def sample(
    *,
    row: str,
    head: str = "",
    epoch_end: str = "",
    end: str = "",
    listed: str = "",
    every: int | None = None,
    first: int = 1,
    meters: str = "row",
    resets_at: int | None = None,
    meters_go_on: bool = False,
) -> Callable[[Run], str]:
    """Logs of a format: templates of what stands before the rows, of a row, of an epoch's end and the log's.

    A row comes `every` steps (default: the run's), which count from `first` in an epoch. The meters (`time`, `rate`,
    ..) are those of the row, the step or the epoch, and start anew before the step `resets_at` of an epoch. With
    `meters_go_on` they do not start anew with an epoch. `listed`
    is what `end` has of each row.
    """

    def text(run: Run) -> str:
        run = dataclasses.replace(run, every=every or run.every)
        facts: dict[str, Any] = {"run": run, "epochs": len(run.epochs()), "steps": len(run.times)}
        facts |= {"gpus": [*range(run.devices)], "last_rank": run.devices - 1}
        lines, rates, of_rows, elapsed, step = [head.format(**facts)], [], [], 0.0, 0
        metered: list[tuple[float, float]] = []
        for epoch, steps in run.epochs():
            metered = metered if meters_go_on else []
            for index, (time, wait) in enumerate(steps, first):
                metered = [] if index == resets_at or meters == "step" else metered
                metered.append((time, wait))
                elapsed, step = elapsed + time, step + 1
                facts |= {"epoch": epoch, "number": epoch + 1, "index": index, "before": index - 1, "step": step}
                facts |= {"of_epoch": len(steps), "step_before": step - 1, "row_start": step - run.every}
                facts |= _printed(run, elapsed, metered)
                if index % run.every == 0:
                    rates.append(facts["rate"])
                    lines.append(row.format(**facts))
                    of_rows.append(listed.format(**facts))
                    metered = [] if meters == "row" else metered
            facts |= {"whole": _printed(run, elapsed, steps)}
            facts |= {"kept": _printed(run, elapsed, steps[min(len(steps) // 10, 100) :])}
            lines += [epoch_end.format(**facts)] if epoch_end else []
        facts |= {"mean_rate": sum(rates) / len(rates), "listed": ", ".join(of_rows)}
        return "".join(f"{line}\n" for line in [*lines, end.format(**facts)] if line)

    return text


def _printed(run: Run, elapsed: float, steps: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The moment, and what the tools make of the times and waits of `steps`; rates are of all devices."""
    at = START + datetime.timedelta(seconds=elapsed)
    total, waited = (math.fsum(values) for values in zip(*steps, strict=True))
    rate = run.global_batch * len(steps) / total
    return {
        "elapsed": elapsed,
        "at": at,
        "ms": at.microsecond // 1000,
        "unix": 1597933942.98 + elapsed,
        "time": total,
        "wait": waited,
        "compute": total - waited,
        "mean": total / len(steps),
        "mean_wait": waited / len(steps),
        "rate": rate,
        "rank_rate": rate / run.devices,
        "compute_rate": rate * total / (total - waited),
    }


def clas_config(more: str = "") -> str:
    """The configuration as PaddleClas prints it, behind a stamp."""
    config = f"""\
Global :
    epochs : {{epochs}}
{more}DataLoader :
    Train :
        sampler :
            batch_size : {{run.batch}}
    Eval :
        sampler :
            batch_size : 7
Infer :
    infer_imgs : docs/ips: 5.demo.jpg"""
    return re.sub("^", "[2023/07/28 07:49:52] ppcls INFO: ", config.replace(" :\n", " : \n"), flags=re.MULTILINE)


CLAS = "[{at:%Y/%m/%d %H:%M:%S}] ppcls INFO: "

# PaddleClas ppcls/static/program.py `run`, behind paddle.distributed.launch.
paddleclas_static = sample(
    head=f"""\
LAUNCH INFO 2023-07-28 07:49:49,628 nnodes: 1
LAUNCH INFO 2023-07-28 07:49:49,637 Run Pod: fcxkfi, replicas {{run.devices}}, status ready
I0728 --ips:0,1,2,3 will change into relative_ips:[0, 1, 2, 3]
{clas_config()}
W0728 07:50:13.7 20850 gpu_resources.cc:119] Please NOTE: device: 0, GPU Compute Capability: 7.0, \
Driver API Version: 12.0, Runtime API Version: 11.2""",
    row=CLAS + "epoch:{epoch:<3d} train step:{index:<4d} lr: 0.100000, loss:  6.9950 top1:  0.0039 top5:  0.0078 "
    "batch_cost: {mean:.5f} s, reader_cost: {mean_wait:.5f} s, ips: {rank_rate:.5f} samples/sec.",
    epoch_end=CLAS + "END epoch:{epoch:<3d} train  loss:  6.9075 top1:  0.0035 "
    "batch_cost: {mean:.5f} s, reader_cost: {mean_wait:.5f} s, batch_cost_sum: {time:.5f} s,",
    resets_at=5,
    meters="epoch",
)

AMP = "AMP :\n    level : O2\n"

# PaddleClas ppcls/engine/train/train.py `train_epoch` and utils.py `log_info`.
paddleclas_dygraph = sample(
    head=f"""\
INFO 2023-07-28 07:49:49 launch_utils.py:561] PADDLE_TRAINERS_NUM         {{run.devices}}      |
{clas_config(AMP)}
[2023/07/28 07:49:52] ppcls INFO: train with paddle 2.5.0 and device Place(gpu:0)""",
    row=CLAS + "[Train][Epoch {number}/{epochs}][Iter: {index}/{of_epoch}]lr(PiecewiseDecay): 0.10000000, "
    "top1: 0.00391, CELoss: 6.99, loss: 6.99500, batch_cost: {mean:.5f}s, reader_cost: {mean_wait:.5f}, "
    "ips: {rank_rate:.5f} samples/s, eta: 0:04:20",
    epoch_end=CLAS + "[Train][Epoch {number}/{epochs}][Avg]loss: 6.9\n"
    "[..] ppcls INFO: [Eval][Epoch {number}][Avg]CELoss: 1.2, loss: 1.2, top1: 0.71234, top5: 0.9",
    first=0,
    resets_at=5,
    meters_go_on=True,
)

# PaddleSeg paddleseg/core/train.py `train`.
paddleseg = sample(
    head="""\
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
  type: FCN""",
    row="{at:%Y-%m-%d %H:%M:%S} [INFO]\t[TRAIN] epoch: 1, iter: {step}/{steps}, loss: 2.2142, lr: 0.009684, "
    "batch_cost: {mean:.4f}, reader_cost: {mean_wait:.5f}, ips: {rank_rate:.4f} samples/sec | ETA 00:04:20",
    end="2023-07-27 12:51:23 [INFO]\t[EVAL] #Images: 500 mIoU: 0.7897 Acc: 0.9 Kappa: 0.9 Dice: 0.8",
)

# mmcv/runner/hooks/logger/text.py with the IterBasedRunner.
mmseg = sample(
    head="""\
GPU 0,1,2,3,4,5,6,7: Tesla V100-SXM2-32GB
PyTorch: 1.11.0a0+b6df043
    samples_per_gpu={run.batch},
gpu_ids = range(0, {run.devices})
2023-08-03 02:17:59,035 - mmseg - INFO - workflow: [('train', 1)], max: {steps} iters""",
    row="{at:%Y-%m-%d %H:%M:%S},649 - mmseg - INFO - Iter [{step}/{steps}]\tlr: 9.851e-03, eta: 0:15:52, "
    "time: {mean:.3f}, data_time: {mean_wait:.3f}, memory: 13479, decode.loss_ce: 2.6493, "
    "decode.acc_seg: 25.3587, loss: 2.6493",
)

# The same hook with the EpochBasedRunner, as mmcls prints it.
mm_epochs = sample(
    head="""\
GPU 0,1,2,3,4,5,6,7: Tesla V100-SXM2-32GB
PyTorch: 1.11.0a0+b6df043
dataset_type = 'ImageNet'
    samples_per_gpu={run.batch},
gpu_ids = range(0, {run.devices})
2023-08-03 02:17:59,035 - mmcls - INFO - workflow: [('train', 1)], max: {epochs} epochs""",
    row="{at:%Y-%m-%d %H:%M:%S},649 - mmcls - INFO - Epoch [{number}][{index}/{of_epoch}]\tlr: 1.000e-01, "
    "eta: 1 day, 0:15:52, time: {mean:.3f}, data_time: {mean_wait:.3f}, memory: 3784, loss: 6.9",
    epoch_end="2023-08-03 02:19:59,035 - mmcls - INFO - Epoch(val) [{number}][98]\taccuracy_top-1: 71.2340, "
    "accuracy_top-5: 90.1",
)

# PaddleCV/image_classification/train.py of PaddlePaddle/models 1.8, with Python's logging stamps.
paddle18 = sample(
    head="-----------  Configuration Arguments -----------\nmodel: ResNet50\nuse_fp16: False\nbatch_size: 999",
    row="{at:%Y-%m-%d %H:%M:%S},{ms:03d}-INFO: [Pass {epoch}, train batch {before}] "
    "\tloss 6.99500, acc1 0.00391, acc5 0.00781, lr 0.10000, elapse {time:2.4f} sec",
    epoch_end="[End pass {epoch}]\ttrain_loss 6.9, train_acc1 0.1, train_acc5 0.2,test_loss 1.2, test_acc1 0.71234, "
    "test_acc5 0.9",
    every=1,
)

# OneFlow-Benchmark Classification/cnns/util.py `Metric`.
oneflow = sample(
    head="Running resnet50: num_gpu_per_node = {run.devices}, num_nodes = 1.\n"
    "model = resnet50\nbatch_size_per_device = {run.batch}\nnum_nodes = 1\ngpu_num_per_node = {run.devices}\n"
    "Epoch 0: ips: 3 not a rate",
    row="train: epoch 0, iter {step}, loss: 6.505637, top_1: 0.000000, top_k: 0.000000, "
    "samples/s: {rate:.3f} [{unix:.2f}]",
    end="validation: epoch 0, iter 50, top_1: 0.712340, top_k: 0.9, samples/s: 2000.000",
)

DLL = "DLL {at:%Y-%m-%d %H:%M:%S.%f} - "

# DeepLearningExamples PyTorch/Classification/ConvNets: a row an iteration, dllogger's standard output.
nvidia_pytorch = sample(
    head="DLL 2023-08-04 05:47:49.926771 - PARAMETER arch : resnet50  batch_size : {run.batch}  amp : True  "
    "local_rank : 0  gpu : 0  world_size : {run.devices} ",
    row=DLL + "Epoch: 0 Iteration: {step}  train.loss : 7.08354 None train.compute_ips : {compute_rate:.2f} images/s "
    "train.total_ips : {rate:.2f} images/s train.lr : 0.1 ",
    end=DLL + "Epoch: 0  train.loss : 6.1 None train.total_ips : 782.08 images/s val.top1 : 71.234 % "
    "val.top5 : None %\n" + DLL + "Summary: train.total_ips : {mean_rate:.2f} images/s",
    every=1,
)

DLLL = (
    'DLLL {{"timestamp": "{unix:.6f}", "elapsedtime": "{elapsed:.6f}", '
    '"datetime": "{at:%Y-%m-%d %H:%M:%S.%f}", "type": "LOG", "step": '
)

# The same by DLLogger's JSONStreamBackend.
nvidia_json = sample(
    head='DLLL {{"timestamp": "1690530600.0", "elapsedtime": "0.0", "datetime": "2023-07-28 07:50:00.0", '
    '"type": "LOG", "step": "PARAMETER", '
    '"data": {{"arch": "resnet50", "batch_size": {run.batch}, "amp": true, "world_size": {run.devices}}}}}',
    row=DLLL + '[0, {step}], "data": {{"train.loss": 7.08354, "train.compute_ips": {compute_rate!r}, '
    '"train.total_ips": {rate!r}, "train.lr": 0.1}}}}',
    end=DLLL + '[0], "data": {{"train.loss": 6.1, "train.total_ips": 782.08, "val.top1": 71.234}}}}\n'
    "" + DLLL + '[], "data": {{"train.total_ips": {mean_rate!r}}}}}',
    every=1,
)

# DeepLearningExamples TensorFlow/Classification/ConvNets: total_ips every display_every steps.
nvidia_tensorflow = sample(
    head="DLL 2022-11-24 04:09:31.727199 - PARAMETER arch : resnet50  mode : training_benchmark  "
    "batch_size : {run.batch}  display_every : 10  amp : False \n"
    "Num GPUs {run.devices}\nPer-GPU Batch Size {run.batch}",
    row=DLL + "(0, {step_before}) total_ips : {rate!r} ",
    end="Ending Model Training ...\n" + DLL + "() train_throughput : {mean_rate!r} images/s\n"
    "" + DLL + "() top1_accuracy : 0.71234 top5_accuracy : 0.9 eval_throughput : 2000.0 images/s",
)

NVLOG = ":::NVLOGv0.2.3 resnet {unix:.9f} (benchmark_hooks.py"

# The same before DLLogger: benchmark_hooks.py prints a row on two lines.
nvidia_nvlog = sample(
    head="""\
:::NVLOGv0.2.3 None 1621940020.763555050 (resnet_v1_5.py:94) Name: "resnet50_v1.5"
:::NVLOGv0.2.3 None 1621940020.961197376 (runner.py:393) Num GPUs: {run.devices}
:::NVLOGv0.2.3 None 1621940020.961632444 (runner.py:394) Per-GPU Batch Size: {run.batch}""",
    row=NVLOG + ":59) iteration: {step_before}\n" + NVLOG + ":60) total_ips: {rate!r}",
    end=NVLOG + ":66) Average total_ips: {mean_rate!r}\n"
    ":::NVLOGv0.2.3 resnet 1621940099.5 (runner.py:600) Top-1 Accuracy: 71.234",
)

# What NVIDIA's MXNet benchmark.py prints last.
CLOSING_TABLE = f"           |{{run.batch:^11}}|\n{'-' * 24}\n{{run.devices:^11}}|  389.54   |\n"

# DeepLearningExamples MxNet/Classification/RN50v1.5/fit.py under mpirun, with benchmark.py's table.
nvidia_mxnet = sample(
    head="[1,0]<stdout>:DLL 2023-07-31 09:00:37.508909 - PARAMETER arch : resnetv15  dtype : float32  amp : False  "
    "batch_size : {run.global_batch}  gpus : {gpus}  image_shape : [3, 224, 224] \n"
    "[1,0]<stderr>:[09:00:37] ../src/storage/storage.cc[1,0]<stderr>::196: Using Pooled (Naive) StorageManager",
    row="[1,0]<stdout>:" + DLL + "Epoch: {epoch} Iteration: {before}  train.loss : 7.100936794281006  "
    "train.ips : {rate!r} images/s train.lr : 0.0019456 ",
    epoch_end="[1,0]<stdout>:" + DLL + "Epoch: {epoch}  train.loss : 6.82  train.ips : {kept[rate]!r} images/s",
    end="[1,0]<stdout>:" + DLL + "Summary: train.ips : {mean_rate!r} images/s\ntrain.ips\n" + CLOSING_TABLE,
)

# The same before DLLogger, each rank in its own words.
SPEED = (
    "[1,{rank}]<stderr>:{{at:%Y-%m-%d %H:%M:%S}},{{ms:03d}}:INFO: Epoch[{{epoch}}] Batch [{{row_start}}-{{before}}]"
    "\tSpeed: {{rate!r}} samples/sec\tLR: 0.0039936\t"
)
ARGUMENTS = (
    "[1,{rank}]<stderr>:2023-07-28 07:49:59,467:INFO: Start with arguments Namespace(amp=False, "
    "arch='resnetv15', batch_size={{run.global_batch}}, dtype='float32', gpus={{gpus}})"
)
nvidia_mxnet_speed = sample(
    head=ARGUMENTS.format(rank=0) + "\n" + ARGUMENTS.format(rank="{last_rank}"),
    row=SPEED.format(rank=1) + "\n" + SPEED.format(rank=0),
    epoch_end="[1,0]<stderr>:2023-07-28 08:49:58,467:INFO: Epoch[{epoch}] Validation accuracy            : 0.71234",
    end="[1,0]<stderr>:2023-07-28 08:49:59,467:INFO: Experiment took: 146.61724376678467 sec\n"
    "train.total_ips\n" + CLOSING_TABLE,
)

# DeepLearningExamples PaddlePaddle/Classification/RN50v1.5/program.py: values of the last step, not means.
nvidia_paddle = sample(
    row=DLL + "Epoch: {epoch} Iteration: {index}  train.loss : 6.9  train.top1 : 0.004  train.top5 : 0.008  "
    "train.data_time : {wait!r}  train.compute_time : {compute!r}  train.batch_time : {time!r}  "
    "train.ips : {rate!r}  train.lr : 0.256 ",
    epoch_end=DLL
    + "Epoch: {epoch}  train.loss : 6.9  train.epoch_time : {whole[time]!r}  train.ips : {whole[rate]!r} ",
    end=DLL + "Summary: train.loss : 6.9  train.ips : {mean_rate!r} ",
    meters="step",
)

# GluonCV's scripts/classification/imagenet/train_imagenet.py.
gluoncv = sample(
    head="Namespace(batch_norm=False, batch_size={run.batch}, dtype='float32', model='resnet50_v1b', "
    "num_epochs={epochs}, num_gpus={run.devices}, use_gn=False)",
    row="Epoch[{epoch}] Batch [{before}]\tSpeed: {rate:.6f} samples/sec\taccuracy=0.000957\tlr=0.100000",
    epoch_end="[Epoch {epoch}] training: accuracy=0.007411\n"
    "[Epoch {epoch}] speed: {whole[rate]:.6f} samples/sec\ttime cost: {whole[time]:.6f}\n"
    "[Epoch {epoch}] validation: err-top1=0.240000 err-top5=0.070000",
)

KERAS_CONFIG = """\
{{{{'runtime': {{{{'num_gpus': {gpus},
             'worker_hosts': None}}}},
 'train_dataset': {{{{'name': 'imagenet2012',
                   'augmenter': {{{{'name': None}}}},
                   'batch_size': {batch},
                   'dtype': 'float32',
                   'use_per_replica_batch_size': True}}}},
 'validation_dataset': {{{{'batch_size': 9,
                        'dtype': 'float16'}}}}}}}}"""

# TensorFlow models official/utils/misc/keras_utils.py `TimeHistory`, with classifier_trainer.py's words.
keras = sample(
    head=KERAS_CONFIG.format(gpus=0, batch=7) + "\n" + KERAS_CONFIG.format(gpus="{run.devices}", batch="{run.batch}"),
    row="I0728 07:50:52.940788 140244211521280 keras_utils.py:133] TimeHistory: {time:.2f} seconds, "
    "{rate:.2f} examples/second between steps {row_start} and {step}",
    listed="'BatchTimestamp<batch_index: {step}, timestamp: {unix}>'",
    end="{{'accuracy_top_1': 0.76, 'step_timestamp_log': [{listed}], 'train_finish_time': 1.0}}",
)

missing = sorted(set(FORMATS) - set(globals()))
assert missing == [], f"write above what logs of {', '.join(missing)} look like, by the format's name"
WRITERS: dict[str, Callable[[Run], str]] = {name: globals()[name] for name in FORMATS}  # each has its format's name

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


scoring = functools.partial(jobs.called, main)


def command(*arguments: object) -> tuple[int, dict[str, Any], str]:
    """`python -m scoring ... --json`: exit status, parsed output, standard error."""
    status, out, error = scoring(*arguments, "--json")
    return status, json.loads(out or "{}"), error
