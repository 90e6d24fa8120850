"""FCN-HRNetW18: the network against PaddleSeg's own, its training, real jobs by the user's command, and mIoU."""

import functools
import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from paddle import static
from scipy.special import softmax

from compliance import rules
from compliance.check import check_file
from compliance.official import tools as official
from paddle_hrnet import config, data, model, train
from paddle_hrnet.config import CITYSCAPES_80K, FLIP, MULTISCALE, Recipe
from paddle_hrnet.model import fcn_hrnet_w18, paddleseg_name, pretrained_weights, read_pdparams
from tests import jobs
from tests.harness import small
from tests.paddle_hrnet.test_data import write
from tests.program import lower, programs
from tests.scoring.samples import command, scoring


@pytest.fixture(autouse=True)
def _static() -> None:
    paddle.enable_static()


@functools.cache
def build(recipe: Recipe = CITYSCAPES_80K) -> static.Program:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        logits = fcn_hrnet_w18(static.data("image", [1, 3, 512, 1024], "float32"), recipe, training=False)
    assert logits.shape == (1, recipe.classes, 512, 1024)
    return main


def parameters(main: static.Program) -> tuple[int, int]:
    """Trainable ones, and all with BN statistics."""
    count = {v.name: int(np.prod(v.shape)) for v in main.list_vars() if v.persistable and paddleseg_name(v.name)}
    trainable = {p.name for p in main.all_parameters() if p.trainable}
    return sum(count[name] for name in trainable), sum(count.values())


@pytest.mark.parametrize(("bias", "trainable", "whole"), [(True, 9_641_119, 9_675_595), (False, 9_640_830, 9_675_306)])
def test_parameters(bias: bool, trainable: int, whole: int) -> None:
    assert parameters(build(replace(CITYSCAPES_80K, head_bias=bias))) == (trainable, whole)


def test_publishing_knows_how_many_weights_there_are() -> None:
    known = rules.load("4.0.0").benchmarks["hrnet"].weights
    for classes in (11, 19):
        main = build(replace(CITYSCAPES_80K, classes=classes))
        tensors = sum(p.trainable for p in main.all_parameters())
        assert known is not None and (known.tensors, known.numbers(classes)) == (tensors, parameters(main)[0])


def test_building_twice_shares_the_weights() -> None:
    main, startup, found = static.Program(), static.Program(), []
    small = mock.patch.multiple(model, MODULES={2: 1, 3: 1, 4: 1}, BLOCKS=1)
    with small, static.program_guard(main, startup):
        image = static.data("image", [1, 3, 32, 32], "float32")
        for _ in range(2):
            fcn_hrnet_w18(image, replace(CITYSCAPES_80K, classes=3), training=False)
            found.append(parameters(main))
    assert found[0] == found[1]


# ---- PaddleSeg's own weights and outputs


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peer")
    done = jobs.run([sys.executable, str(Path(__file__).with_name("paddleseg_peer.py")), str(folder)])
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["evaluated", "trained", "flip", "multiscale"])
def test_outputs_agree_with_paddleseg(peer: Path, mode: str) -> None:
    """Of the network, and of an evaluation that sums up logits of several sizes and mirror images."""
    outputs = np.load(peer / "outputs.npz")
    recipe, views = {"flip": (FLIP, 2), "multiscale": (MULTISCALE, 6)}.get(mode, (CITYSCAPES_80K, 1))
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        image = static.data("image", list(outputs["image"].shape), "float32")
        if mode == "trained":
            logits = fcn_hrnet_w18(image, recipe, training=True)
        else:
            logits = train.evaluation_logits(image, recipe)
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        static.set_program_state(main, pretrained_weights(peer / "weights.pdparams", main))
        (ours,) = executor.run(main, feed={"image": outputs["image"]}, fetch_list=[logits])
    assert np.abs(outputs[mode]).max() > 0.1
    assert mode == "evaluated" or np.abs(outputs[mode] - outputs["evaluated"]).max() > 0.1
    np.testing.assert_allclose(ours / views, outputs[mode], rtol=0, atol=1e-4 * np.abs(outputs[mode]).max())


# ---- files of weights


def test_a_file_of_paddle(tmp_path):
    """Written by paddle.save of a layer's state, as PaddleSeg publishes its weights, in both protocols."""
    path = tmp_path / "a.pdparams"
    with paddle.base.dygraph.guard(paddle.CPUPlace()):
        state = paddle.nn.Conv2D(3, 4, 3).state_dict()
        for protocol in (2, 4):
            paddle.save(state, str(path), protocol=protocol)
            arrays = read_pdparams(path)
            assert arrays.keys() == {"weight", "bias"}
            assert all(np.array_equal(value, state[name].numpy()) for name, value in arrays.items())
        paddle.save(state["weight"].numpy().tolist(), str(path))
    with pytest.raises(ValueError, match="a list"):
        read_pdparams(path)


class _Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, np.load, subprocess.Popen])
def test_code_is_not_run(tmp_path, function):
    mark, path = tmp_path / "mark", tmp_path / "a.pdparams"
    path.write_bytes(pickle.dumps({"weight": _Evil(function, f"touch {mark}")}))
    with pytest.raises(ValueError, match="which no array needs"):
        read_pdparams(path)
    assert not mark.exists()


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"\x00" * 100, b"PK\x03\x04", pickle.dumps({"a": [1, 2]})])
def test_no_weights(tmp_path, data):
    path = tmp_path / "a.pdparams"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.pdparams: "):
        read_pdparams(path)
    with pytest.raises(ValueError, match="no weights of Paddle"):
        read_pdparams(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"no weights of Paddle .*is a pipe"):  # and does not wait for a writer
        read_pdparams(tmp_path / "pipe")


def zeros(program: static.Program) -> dict[str, np.ndarray]:
    """A value for each variable of the model, as PaddleSeg names it."""
    shapes = {paddleseg_name(v.name): v.shape for v in program.list_vars() if v.persistable}
    return {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items() if name}


def saved(folder: Path, state: dict[str, np.ndarray]) -> Path:
    paddle.save(state, str(folder / "weights.pdparams"))
    return folder / "weights.pdparams"


@pytest.mark.slow
@pytest.mark.ci
def test_backbone_weights_leave_the_head_as_it_is(tmp_path: Path) -> None:
    main = build()
    state = {name.removeprefix("backbone."): value for name, value in zeros(main).items() if "backbone." in name}
    found = {paddleseg_name(name) for name in pretrained_weights(saved(tmp_path, state), main)}
    assert found == {f"backbone.{name}" for name in state} and len(found) == 1533 - 8


def test_a_mismatch_names_the_layers(tmp_path: Path) -> None:
    main = build()
    state = zeros(main)
    assert len(pretrained_weights(saved(tmp_path, state), main)) == 1533
    del state["backbone.la1.bb_layer2_1.conv1._conv.weight"]
    state["head.cls.weight"] = np.zeros([21, 270, 1, 1], dtype=np.float32)
    absent = "backbone.la1.bb_layer2_1.conv1._conv.weight is absent; "
    other = r"head.cls.weight is \[21, 270, 1, 1\] there and \[19, 270, 1, 1\] here: set PRETRAINED"
    with pytest.raises(ValueError, match=f"does not fit in 2 layers: {absent}{other}"):
        pretrained_weights(saved(tmp_path, state), main)


def test_weights_for_other_classes_are_told_as_such(tmp_path: Path) -> None:
    """They are of HRNet-W18, and the advice to take such would lead nowhere."""
    main = build()
    state = zeros(main)
    state["head.cls.weight"] = np.zeros([21, 270, 1, 1], dtype=np.float32)
    fix = "it is for 21 classes: set PRETRAINED to weights of the backbone alone"
    with pytest.raises(ValueError, match=f"does not fit in 1 layer: .*: {fix}"):
        pretrained_weights(saved(tmp_path, state), main)


# ---- training, and real jobs by the user's command

SIDE = 32
TRAINING = {**small.TRAINING, "WORKLOAD": "hrnet", "IMAGE_SIZE": SIDE}


def training_program(name: str, *, device: str, knobs: str = "") -> programs.Built:
    """The training program of one rank at 64 pixels, weights to be set by `programs.losses`."""
    recipe = config.recipe("cityscapes_80k", global_batch=2, image_size=64)
    recipe = replace(recipe, base_learning_rate=1e-3)
    return programs.fresh(
        name=name,
        device=device,
        knobs=knobs,
        layout="NCHW",
        batch=2,
        workload=train.HRNet,
        recipe=recipe,
        schedule=recipe.make_schedule(samples=100, global_batch=2),
    )


def feed(step: int) -> dict[str, np.ndarray]:
    batch = data.synthetic(data.ImageFormat(height=64, width=64), batch=2, classes=19, seed=step)
    return {"image": batch.image, "label": batch.label}


@pytest.mark.slow
def test_the_gpu_program_lowered_to_a_cpu_trains_as_the_plain_program_does() -> None:
    """Its gradients of sums share a variable each, to which convolutions add theirs."""
    plain = training_program("fp32", device="cpu", knobs="fuse_elewise_add_act_ops=0,merged_optimizer=0")
    expected = programs.losses(plain, 3, feed=feed)
    assert max(expected) - min(expected) > 1e-3
    for name in ("fp32", "amp_o1"):
        gpu = training_program(name, device="gpu")
        assert gpu.kinds("fused_elemwise_add_activation", "batch_norm") == [134, 306]
        assert gpu.kinds("fused_elemwise_add_activation_grad")[0] <= 1
        assert gpu.kinds("share_buffer")[0] > 300
        lower.lower(gpu.main, gpu.startup, ranks=1)
        np.testing.assert_allclose(programs.losses(gpu, 3, feed=feed), expected, rtol=1e-4)


def test_an_ignored_pixel_counts_neither_in_the_loss_nor_in_the_gradients() -> None:
    """What the training program computes of a batch, against the loss over the other pixels by its own logits."""
    with mock.patch.multiple(model, MODULES={2: 1, 3: 1, 4: 1}, BLOCKS=1):
        network = training_program("fp32", device="cpu")
    kinds = {op.type: op for op in network.main.global_block().ops}
    (forward, backward) = (kinds[f"softmax_with_cross_entropy{end}"] for end in ("", "_grad"))
    names = ["train.loss", *backward.output("Logits@GRAD"), *forward.input("Logits")]
    batch = feed(0)
    label = batch["label"]
    ignored = np.random.default_rng(1).random(label.shape) < 0.5
    ignored[0, :32] = True
    executor, scope = static.Executor(paddle.CPUPlace()), static.Scope()
    with static.scope_guard(scope):
        executor.run(network.startup)
        programs.set_weights(network, scope)
        batch["label"] = np.where(ignored, np.uint8(255), label)
        found, gradient, logits = executor.run(network.main, feed=batch, fetch_list=names)
    assert np.ptp(logits, axis=1).max() > 0.1
    share, hit = softmax(logits, axis=1), np.eye(19)[label].transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found, -np.log((share * hit).sum(axis=1))[~ignored].mean(), rtol=1e-5)
    expected = np.where(ignored[:, None], 0, share - hit) / (~ignored).sum()
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-9)


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """Eight training and three evaluation scenes of two colours, labelled 0 and 1."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 3)):
        for i in range(count):
            label = np.zeros((SIDE, SIDE), dtype=np.uint8)
            label[:, rng.integers(8, 24) :] = 1
            image = (label[:, :, None] * 150 + rng.integers(0, 50, (SIDE, SIDE, 3))).astype(np.uint8)
            write(tmp_path / "town", part, f"{i}", image, label)
    return tmp_path / "town"


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_the_log_of_the_default_job_passes_both_checkers(tmp_path: Path) -> None:
    """It ends when the embedded scenes' target is reached: minutes. The official checker by its command."""
    job: dict[str, Any] = {"WORKLOAD": "hrnet", "SEED": 1, "CLEAR_CACHES": 0, "PROGRESS": "plain"}
    done = jobs.run_and_time(LOGDIR=tmp_path, timeout_s=1200, **job)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "CPU/hrnet/result_0.txt"
    assert jobs.values(log, "eval_accuracy")[-1] >= 0.70
    findings = check_file(log, rules.load("4.0.0")).findings
    assert [finding for finding in findings if finding.severity == "error"] == []
    assert official.check_log(log, "4.0.0", "hrnet") == (True, [])


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_the_accuracy_mode_as_a_user_starts_it(tmp_path: Path, data_set: Path) -> None:
    """80,000 iterations from pretrained weights, ended after an epoch; a backbone of zeros prefers no class."""
    paddle.enable_static()
    state = {name.removeprefix("backbone."): value for name, value in zeros(build()).items()}
    weights = saved(tmp_path, state)
    mode = {"MODE": "train", "RECIPE": "cityscapes_80k", "DGXNGPU": 1, "MAX_EPOCHS": 1, "PRETRAINED": weights}
    done = jobs.run_and_time(LOGDIR=tmp_path, DATADIR=data_set, timeout_s=1200, **(TRAINING | mode))
    assert done.returncode == 1
    assert "after 1 epoch, below the target 0.7897" in done.stderr
    log = tmp_path / "CPU/hrnet/result_0.txt"
    windows = jobs.values(log, "step_window")
    assert len(windows) == 4
    assert windows[0]["loss"] == pytest.approx(math.log(19), rel=1e-5)
    logged = {event["key"]: event["value"] for event in jobs.mllog(log)}
    names = ("base_learning_rate", "learning_rate_decay_poly_power", "momentum", "weight_decay")
    assert [logged[f"sgd_opt_{name}"] for name in names] == [0.01, 0.9, 0.9, 5e-4] and logged["model_bn_span"] == 2
    assert len(jobs.values(log, "eval_accuracy")) == 1


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_labels_without_anything_to_learn_are_warned_of(tmp_path: Path) -> None:
    """Trained on labels of 255 alone, evaluated on masks of 0 and 255: the run goes on, and says so of both."""
    ignored = np.full((SIDE, SIDE), 255, dtype=np.uint8)
    mask = np.where(np.arange(SIDE) < SIDE // 2, ignored, np.uint8(0))
    image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    for name in ("0", "1", "2", "3"):
        write(tmp_path / "town", "train", name, image, ignored)
    write(tmp_path / "town", "val", "0", image, mask)
    log = tmp_path / "log.txt"
    done = small.train(log, tmp_path / "town", ranks=1, cwd=jobs.REPOSITORY, **(TRAINING | {"MAX_EPOCHS": 1}))
    of_training = "warning: the loss is 0: all is learned, or the labels hold nothing to learn"
    of_evaluation = "warning: the evaluation's labels hold class 0 alone (255 is ignored)"
    for text in (done.stdout, log.read_text()):
        assert text.count("warning: ") == 2 and of_training in text and of_evaluation in text
    assert len(jobs.values(log, "step_window")) == 2, "the second window of such labels has no second warning"


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bytes(range(256)), "no weights of Paddle ("),
        (pickle.dumps({"conv_layer1_1._conv.weight": np.zeros(1)}), "does not fit in 1525 layers: "),
    ],
    ids=["no weights", "another network"],
)
def test_a_job_of_unfit_weights_says_one_line_and_leaves_no_log(
    tmp_path: Path, data_set: Path, content: bytes, said: str
) -> None:
    """It left one, which the next start had to refuse."""
    weights = tmp_path / "weights.pdparams"
    weights.write_bytes(content)
    variables = TRAINING | {"MODE": "throughput", "DGXNGPU": 1, "PRETRAINED": weights}
    done = jobs.run_and_time(LOGDIR=tmp_path, DATADIR=data_set, timeout_s=1200, **variables)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"error: {weights}: {said}")
    assert "Traceback" not in done.stdout and not (tmp_path / "CPU/hrnet/result_0.txt").exists()


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_the_reports_benchmark(tmp_path: Path, data_set: Path) -> None:
    """Batch 8 a device, no pretrained weights; 8 + 10 steps printed every 2, where the report has 400 every 15."""
    steps = {"WARMUP_STEPS": 8, "MEASURED_STEPS": 10, "PRINT_STEPS": 2}
    mode = {"MODE": "throughput", "RECIPE": "cityscapes_benchmark", "BATCHSIZE": 8, "DGXNGPU": 1, "MAX_EPOCHS": 0}
    variables = TRAINING | mode | steps
    done = jobs.run_and_time(LOGDIR=tmp_path, DATADIR=data_set, timeout_s=1200, **variables)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "CPU/hrnet/result_0.txt"
    windows = jobs.values(log, "step_window")
    assert [w["images"] for w in windows] == [16] * 9
    (summary,) = jobs.values(log, "run_summary")
    assert (summary["mode"], summary["devices"], summary["batch_per_device"]) == ("throughput", 1, 8)
    phases = [event["metadata"]["phase"] for event in jobs.mllog(log) if event["key"] == "step_window"]
    assert phases == ["warmup"] * 4 + ["measured"] * 5  # the protocol drops the first four
    status, score, _ = command("score", log, "--protocol", "perf-seg")
    expected = 8 / np.mean([w["time_s"] / w["steps"] for w in windows[4:]])
    assert status == 0 and score["value"] == pytest.approx(expected, rel=1e-6)
    assert (score["windows"], score["unit"]) == (5, "images/s")
    whole = log.read_text().replace('"device": "cpu"', '"device": "gpu"')  # as the published tables, also the second
    half = whole.replace('_mode": "fp32"', '_mode": "amp_o2"').replace('n": "fp32"', 'n": "amp_o2"')
    for text, table in ((whole, ("19.428", "117.205", "428")), (half, ("22.115", "115.468", "422"))):
        log.write_text(text)
        status, report, _ = scoring("report", log, "--protocol", "perf-seg", "--markdown", "-")
        assert status == 0
        for devices, published in zip((1, 8, 32), table, strict=True):
            assert f"| {devices} | {published} |" in report


# ---- mIoU against its definition, counted pixel by pixel, and PaddleSeg's rule


def by_operators(logits: np.ndarray, label: np.ndarray, classes: int) -> np.ndarray:
    paddle.enable_static()
    main, given = static.Program(), {"logits": logits, "label": label}
    with static.program_guard(main, static.Program()):
        scores, truth = (static.data(name, list(array.shape), str(array.dtype)) for name, array in given.items())
        matrix = train.confusion_matrix(scores, truth, classes)
    return static.Executor(paddle.CPUPlace()).run(main, feed=given, fetch_list=[matrix])[0]


@pytest.mark.parametrize("seed", range(4))
def test_confusion_matrix_counts_each_pixel(seed: int) -> None:
    """The IoU of a class is the share of the pixels that label or prediction give it in which both do."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 20))
    logits = rng.standard_normal((2, classes, 17, 23)).astype(np.float32)
    label = rng.integers(0, classes, (2, 17, 23)).astype(np.uint8)
    label[rng.random(label.shape) < 0.3] = 255
    prediction, counted = logits.argmax(axis=1), label != 255
    ours = by_operators(logits, label, classes)
    expected = np.zeros((classes, classes), dtype=int)
    for true, predicted in zip(label[counted], prediction[counted], strict=True):
        expected[true, predicted] += 1
    np.testing.assert_array_equal(ours, expected)
    ious = []
    for number in range(classes):
        labelled = counted & (label == number)
        predicted = counted & (prediction == number)
        ious.append((labelled & predicted).sum() / (labelled | predicted).sum())
    assert train.mean_iou(ours) == pytest.approx(np.mean(ious))


def test_an_absent_class_counts_as_0_as_in_paddleseg() -> None:
    assert train.mean_iou(np.array([[6, 0, 0], [2, 2, 0], [0, 0, 0]])) == pytest.approx((0.75 + 0.5 + 0.0) / 3)
    confusion = by_operators(np.zeros((1, 3, 2, 2), np.float32), np.full((1, 2, 2), 255, np.uint8), 3)
    assert not confusion.any() and train.mean_iou(confusion) == 0.0
