"""The recorded job trained here by any plan, and the check that compares a captured step with a launched one."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import static

from harness import loader, state
from harness.hooks.capture import CapturedStep
from harness.hooks.watchdog import WATCHDOG
from harness.loader import Batch
from harness.loop import LaunchedStep
from paddle_rn50.train import ResNet50
from program import build
from program.ops import LOSS_VALUE
from runlog.verdict import Verdict, judged
from tools.acceptance.images import as_fed
from tools.acceptance.lines import NotPossible
from tools.acceptance.machine import Machine
from tools.acceptance.reference import BATCH, SEED, first_weights

# Of Paddle, so that two runs of one program compute the same bits: cuDNN's algorithms without atomics (gradients of
# filters and of the maximum), always the same ones. Its kernels refuse a search beside the first.
REPEATABLE = {"FLAGS_cudnn_deterministic": True, "FLAGS_cudnn_exhaustive_search": False}


def captured(machine: Machine) -> Verdict:
    """Losses of the recorded job's first steps, launched operator by operator, against those of a replayed graph.

    The last check of its job: a capture binds the process to its GPU, and one that fails leaves its stream capturing.
    """
    if machine.job.device == "cpu":
        raise NotPossible("a CPU has no CUDA graphs: DEVICE=cpu")
    paddle.set_flags(REPEATABLE)
    launched = train(machine, machine.plan())
    return same_bits(launched, train(machine, machine.plan(strategy="cuda_graph=1")))


def train(machine: Machine, plan: build.Plan) -> np.ndarray:
    """Losses [ranks, steps] of the recorded job's first steps by a plan, each read after its step."""
    recipe, images, schedule = machine.recorded()
    read, weights = machine.batches(images, recipe, machine.steps), first_weights(recipe)  # before a capture binds it
    model, executor, found = ResNet50(recipe, plan, batch=BATCH), machine.executor, []
    with static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        training = model.training_program(schedule, seed=SEED)
        executor.run(training.startup)
        batches = [loader.resident(_batch(as_fed(image, model.image), label), executor.place) for image, label in read]
        feeds = [{"image": batch.image, "label": batch.label} for batch in batches]
        step = (CapturedStep if plan.strategy.cuda_graph else LaunchedStep)(executor, training)
        if plan.strategy.cuda_graph:
            step.begin()
            for _ in range(step.RUNS_BEFORE):
                step.run(training.main, feeds[0])
            build.keep_communicators(training.startup)
            executor.run(training.startup)  # what they trained
        state.set_weights(training.main, weights)
        step.capture()
        for number, feed in enumerate(feeds, 1):
            WATCHDOG.beat("training the recorded steps")
            step.send_rate(number)
            step.run(training.main, feed)
            training.schedule.step()
            found.append(float(np.mean(np.array(static.global_scope().find_var(LOSS_VALUE).get_tensor()))))
    return np.array(machine.me.gather(found), np.float32)


def _batch(image: np.ndarray, label: np.ndarray) -> Batch:
    return Batch(image=image, label=label, valid=np.ones(len(label), np.float32), ids=np.arange(len(label)))


def same_bits(launched: np.ndarray, replayed: np.ndarray) -> Verdict:
    """Losses [ranks, steps] of the one against those of the other."""
    steps = launched.shape[1]
    differ = (launched.view(np.int32) != replayed.view(np.int32)).any(axis=0)
    still = bool((launched[:, 1:] == launched[:, :-1]).all())
    if not np.isfinite(launched).all():
        found = "a launched step's loss is not finite"
    elif differ.any():
        first = int(np.argmax(differ))
        off = np.max(np.abs(replayed[:, first] - launched[:, first]) / np.abs(launched[:, first]))
        found = f"{differ.sum()} of {steps} losses differ, first at step {first + 1}, by {off:.1e} of it"
    elif still:
        found = f"{steps} losses are alike, and none differs from the one before: nothing was trained"
    else:
        found = f"{steps} of {steps} losses alike bit for bit"
    return judged(
        "captured",
        bool(np.isfinite(launched).all()) and not differ.any() and not still,
        found,
        "STRATEGY=cuda_graph=1 has the losses of the launched step, bit for bit, by cuDNN's repeatable algorithms",
        figures={"launched": launched.tolist(), "replayed": replayed.tolist()},
    )
