"""What a null GPU needs inside Python: Python imports this file when it starts under tests/null_gpu/run.sh.

It refuses a result that would lie among real ones, marks the counters between two runs of Paddle's executor, counts an
evaluation's images on the host, without which no run comes past its first evaluation, and puts DALI's pipelines on the
CPU, as DALI asks CUDA's runtime itself. DALI's outputs are then CPU tensors, which the project's code copies to the
device all the same. NULLGPU_NETWORK=small leaves a block of each stage of the networks.
"""

import ctypes
import importlib.abc
import importlib.machinery
import itertools
import os
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[3] / "results"


def refuse_result():
    result = os.environ.get("RESULT_FILE", "")
    if result and Path(result).resolve().is_relative_to(RESULTS):
        why = "a run on null GPUs computes nothing and is not a result"
        print(f"error: RESULT_FILE={result}: {why}: set LOGDIR to a folder outside {RESULTS}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(2)


def mark_runs(executor):
    """Marks the counters before each run: `run <number of the program, as they come> <what it is fed>`; and once at the
    beginning the cores that the process may use.
    """
    import numpy as np

    library, numbers, count = ctypes.CDLL(None), {}, itertools.count()
    run = executor.Executor.run
    library.nullgpu_mark(f"cores {','.join(map(str, sorted(os.sched_getaffinity(0))))}".encode())

    def marked(self, program=None, feed=None, *args, **kwargs):
        number = numbers.setdefault(id(program), next(count) if id(program) not in numbers else 0)
        library.nullgpu_mark(f"run {number} {','.join(sorted(feed or {}))}".encode())
        counted = memory("eval.counted")[0] if feed and "valid" in feed else 0
        library.nullgpu_running(1)
        done = run(self, program, feed, *args, **kwargs)
        library.nullgpu_running(0)
        if feed and "valid" in feed:
            memory("eval.counted")[0] = counted + int(np.asarray(feed["valid"], dtype=np.float32).sum())
            for name in ("eval.correct", "eval.confusion"):  # else what lay in the memory of a sum
                if found := memory(name):
                    ctypes.memset(found, 0, ctypes.sizeof(found))
            library.nullgpu_mark(b"evaluated")  # a job of several ranks that misses its target is killed
        return done

    executor.Executor.run = marked


def mark_replays(loop):
    """Marks the counters before each step that a captured graph makes: `run -1 captured`."""
    library, run = ctypes.CDLL(None), loop.CapturedStep.run

    def marked(self, main, feed):
        if self._addresses:
            library.nullgpu_mark(b"run -1 captured")
        run(self, main, feed)

    loop.CapturedStep.run = marked


def memory(name):
    """An evaluation's total in the device's memory, which is the host's; None where the workload has no such."""
    variable = sys.modules["paddle"].static.global_scope().find_var(name)
    if not variable:
        return None
    tensor = variable.get_tensor()
    number = ctypes.c_int64 if "int64" in str(tensor._dtype()).lower() else ctypes.c_float
    return (number * tensor._numel()).from_address(tensor._ptr())


def pipelines_on_cpu(dali):
    """DALI's operators and pipelines on the CPU, whatever device they ask for."""
    ops, pipeline = dali.ops, dali.pipeline
    separate, start = ops._separate_kwargs, pipeline.Pipeline._init_pipeline_backend

    def without_device(kwargs, *args, **more):
        init, call = separate(kwargs, *args, **more)
        init.pop("device", None)
        return init, call

    def on_cpu(self):
        self._device_id = None
        start(self)

    ops._separate_kwargs = without_device
    pipeline.Pipeline._init_pipeline_backend = on_cpu
    dali.data_node.DataNode.gpu = lambda self: self


def fewer_blocks(model):
    """A block where the network of paddle_rn50 or paddle_hrnet has several."""
    if model.__name__.startswith("paddle_rn50"):
        model.STAGES = tuple((width, 1) for width, _ in model.STAGES)
    else:
        model.MODULES, model.BLOCKS = dict.fromkeys(model.MODULES, 1), 1


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it is imported."""

    def __init__(self, of_module):
        self._of_module = of_module

    def find_spec(self, name, path, target=None):
        change = self._of_module.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if change else None
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                change(module)

            spec.loader.exec_module = exec_module
        return spec


refuse_result()
changes = {"paddle.base.executor": mark_runs, "harness.loop": mark_replays, "nvidia.dali": pipelines_on_cpu}
if os.environ.get("NULLGPU_NETWORK") == "small":
    changes |= {"paddle_rn50.model": fewer_blocks, "paddle_hrnet.model": fewer_blocks}
sys.meta_path.insert(0, AfterImport(changes))
