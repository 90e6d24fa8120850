"""The input pipeline: lists, crops, evaluation, and what it says of bad files."""

import copy
import functools
import itertools
import json
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from PIL import Image
from scipy.stats import ks_2samp

from harness import passport, ranks, sampling
from harness.embedded import make_once
from harness.job import job_of
from harness.loader import Batch, Loader, ReaderConfig
from harness.session import identity_of
from harness.task import task_of
from paddle_rn50 import data, digits
from paddle_rn50 import folder as folder_of_images
from paddle_rn50.config import IMAGENET_TRAIN, Augmentation
from runlog import workloads
from runlog.errors import RunError
from tests import jobs
from tests.harness import small
from tests.paddle_rn50 import test_records
from tools import pack, pack_sizes

SEED = 3
CROPS = Augmentation()
WHOLE = Augmentation(area_min=1.0, area_max=1.0, aspect_min=1.0, aspect_max=1.0, flip=0.0)


def reader(batch: int, image: Any) -> ReaderConfig:
    """A rank's on this CPU."""
    return ReaderConfig(batch=batch, image=image, device="cpu", device_id=None, threads=1, seed=SEED)


def taken(source: Loader, count: int = 1) -> list[Batch]:
    """Its next batches, copied as its buffers are good until the next one; the source is closed."""
    with closing(source):
        return [copy.deepcopy(batch) for batch in itertools.islice(source, count)]


def pixels_of(image: np.ndarray, of: ModuleType) -> np.ndarray:
    """[C, H, W], normalized as this module does, to [H, W, C] pixels."""
    return image.transpose(1, 2, 0) * np.array(of.STD) + np.array(of.MEAN)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_once(tmp_path_factory.mktemp("data") / digits.NAME, digits.write)


def write(folder: Path, pictures: list[np.ndarray], quality: int = 95) -> folder_of_images.ImageList:
    """A data set of these pictures."""
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{i}.jpeg", quality=quality, subsampling=0)
    (folder / "train_list.txt").write_text("".join(f"{i}.jpeg 0\n" for i in range(len(pictures))))
    return folder_of_images.read_list(folder, "train", 10)


def training(images: data.Images, batch: int, *, augment: Augmentation = CROPS, **image: Any) -> data.Loader:
    """Of one rank, and of 32 pixels where `image` says nothing else."""
    plan = sampling.training_plan(len(images), batch=batch, rank=0, ranks=1, seed=SEED)
    return data.Loader(images, plan, reader(batch, data.ImageFormat(**{"size": 32, **image})), augment=augment)


def test_the_embedded_set_has_a_fixed_stratified_split(embedded: Path) -> None:
    train, val = (folder_of_images.read_list(embedded, part, 10) for part in ("train", "val"))
    assert (len(train), len(val)) == (1437, 360)
    assert not {Path(p).name for p in train.paths} & {Path(p).name for p in val.paths}
    assert np.ptp(np.bincount(val.labels)) <= 2  # the classes have 174 to 183 samples in all
    with Image.open(embedded / train.paths[0]) as picture:
        assert (picture.format, picture.size, picture.mode) == ("JPEG", (64, 64), "RGB")


def test_the_embedded_set_has_the_files_that_the_checker_knows(embedded: Path) -> None:
    train, val = (folder_of_images.read_list(embedded, part, 10) for part in ("train", "val"))
    found = passport.survey(train, val, print)
    known = workloads.named("rn50").embedded
    assert known is not None
    assert (found.train.sha256, found.evaluation.sha256) == (known.train_sha256, known.eval_sha256)


def test_evaluation_is_resize_and_centre_crop(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 300)
    picture = np.stack([np.tile(ramp, (200, 1)), np.tile(ramp[:200, None], (1, 300)), np.full((200, 300), 90)], 2)
    images = write(tmp_path, [picture.astype("uint8")])
    plan = sampling.evaluation_plan(1, batch=1, rank=0, ranks=1)
    [batch] = taken(data.Loader(images, plan, reader(1, data.ImageFormat(size=112)), resize=128))
    with Image.open(tmp_path / "0.jpeg") as opened:
        resized = opened.resize((192, 128), Image.Resampling.BILINEAR)
        expected = np.asarray(resized.crop((40, 8, 152, 120)), dtype=float)
    assert np.abs(pixels_of(batch.image[0], data) - expected).mean() < 1.0  # grey levels of 255


def torchvision_crop(rng: np.random.Generator, height: int, width: int) -> tuple[float, float]:
    """(area share, aspect) of RandomResizedCrop.get_params."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = np.sqrt(area * aspect), np.sqrt(area / aspect)
        if w <= width and h <= height:
            return w * h / (height * width), w / h
    w, h = min(width, height * 4 / 3), min(height, width * 4 / 3)
    return w * h / (height * width), w / h


def test_training_crops_have_the_asked_distribution(tmp_path: Path) -> None:
    """Each pixel says where it came from, so that the crop can be read off the output."""
    height, width, count = 160, 240, 64
    across, down = np.meshgrid(np.linspace(0, 250, width), np.linspace(0, 250, height))
    images = write(tmp_path, [np.stack([across, down, np.zeros_like(down)], 2).astype("uint8")] * count, quality=98)
    boxes = []
    for batch in taken(training(images, 16, size=48), count // 16 * 6):
        for image in batch.image:
            pixels = pixels_of(image, data)
            x, y = pixels[24, :, 0] / 250 * width, pixels[:, 24, 1] / 250 * height
            # the output's pixel centres span 47/48 of the crop
            boxes.append(((x[-1] - x[0]) * 48 / 47, (y[-1] - y[0]) * 48 / 47, min(x[0], x[-1]), y[0]))
    w, h, left, top = np.array(boxes).T
    flipped = w < 0
    w = np.abs(w)
    area, aspect = w * h / (width * height), w / h
    assert 0.35 < flipped.mean() < 0.65  # 384 draws: 0.5 +- 6 standard deviations
    assert area.min() > 0.08 * 0.8 and area.max() <= 1.02  # reading the edges off costs a few per cent
    assert aspect.min() > 0.75 * 0.93 and aspect.max() < 4 / 3 * 1.07
    # Kolmogorov-Smirnov distance to torchvision's way of drawing; 384 against 20,000 draws: 0.1 is one in 10^3.
    expected = np.array([torchvision_crop(np.random.default_rng(i), height, width) for i in range(20_000)])
    for found, drawn in ((area, expected[:, 0]), (aspect, expected[:, 1])):
        assert ks_2samp(found, drawn).statistic < 0.1
    assert (left > -3).all() and (left + w < width + 5).all() and (top + h < height + 5).all()
    assert np.corrcoef(area, left)[0, 1] < -0.2  # small crops go further to the right


def test_a_crop_lies_at_its_drawn_place(tmp_path: Path) -> None:
    """A crop of half the sides of a square image, whose pixels say where they came from."""
    across, down = np.meshgrid(np.linspace(0, 250, 200), np.linspace(0, 250, 200))
    images = write(tmp_path, [np.stack([across, down, np.zeros_like(down)], 2).astype("uint8")] * 8, quality=98)
    augment = Augmentation(area_min=0.25, area_max=0.25, aspect_min=1.0, aspect_max=1.0, flip=0.0)
    [batch] = taken(training(images, 8, augment=augment))
    _, _, places, _ = data._draw(augment, SEED, 1, batch.ids)
    centres = [pixels_of(image, data)[:, :, :2].mean(axis=(0, 1)) for image in batch.image]
    np.testing.assert_allclose(centres, 250 * (0.25 + 0.5 * places), atol=3)


@pytest.mark.parametrize(("height", "width", "shares"), [(200, 50, (0.5, 1.0)), (50, 200, (1.0, 0.3125))])
def test_where_no_drawn_crop_fits_it_is_the_largest_within_the_bounds_at_the_centre(
    tmp_path: Path, height: int, width: int, shares: tuple[float, float]
) -> None:
    """By hand: an aspect of 1/2 takes 100 of 200 pixels down at a width of 50, and one of 5/4 takes 62.5 across at 50.

    A crop of the whole area has another aspect than these images in each draw. Pixels say where they came from.
    """
    across, down = np.meshgrid(np.linspace(0, 250, width), np.linspace(0, 250, height))
    images = write(tmp_path, [np.stack([across, down, np.zeros_like(down)], 2).astype("uint8")] * 4, quality=98)
    augment = Augmentation(area_min=1.0, area_max=1.0, aspect_min=0.5, aspect_max=1.25, flip=0.0)
    [batch] = taken(training(images, 4, augment=augment))
    for image in batch.image:
        pixels = pixels_of(image, data)
        spans = np.array([pixels[-1, 16, 1] - pixels[0, 16, 1], pixels[16, -1, 0] - pixels[16, 0, 0]])
        np.testing.assert_allclose(spans / 250 * 32 / 31, shares, atol=0.04)
        np.testing.assert_allclose(pixels[:, :, :2].mean(axis=(0, 1)), 125, atol=4)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 2), (1, 5)])
def test_a_crop_has_a_pixel_at_least(tmp_path: Path, height: int, width: int) -> None:
    """Of images of one colour, as a tracking pixel has; a run ended at it, and named no file."""
    images = write(tmp_path, [np.full((height, width, 3), 200, dtype=np.uint8)] * 32)
    [batch] = taken(training(images, 32))
    for image in batch.image:
        np.testing.assert_allclose(pixels_of(image, data), 200, atol=1)


def test_the_next_epoch_has_another_order_and_other_crops(tmp_path: Path) -> None:
    images = data.find(small.data_set(tmp_path), "train", 10)
    first, second = taken(training(images, 40), 2)
    assert sorted(first.ids) == sorted(second.ids) and not np.array_equal(first.ids, second.ids)
    again = dict(zip(second.ids, second.image, strict=True))
    assert not any(np.array_equal(image, again[i]) for i, image in zip(first.ids, first.image, strict=True))


def test_layouts_and_padding_hold_the_same_pixels(embedded: Path) -> None:
    images = folder_of_images.read_list(embedded, "train", 10)
    formats: tuple[dict[str, Any], ...] = ({}, {"layout": "NHWC"}, {"layout": "NHWC", "channels": 4}, {"half": True})
    plain, last, padded, half = (taken(training(images, 4, augment=WHOLE, **of))[0].image for of in formats)
    assert np.array_equal(last, plain.transpose(0, 2, 3, 1))
    assert np.array_equal(padded[..., :3], last) and not padded[..., 3].any()
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, plain, atol=2e-3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("train/00.jpeg\n", r":1: 'train/00.jpeg' has no label"),
        ("train/00.jpeg 1\ntrain/00.jpeg one\n", r":2: 'train/00.jpeg one' has no label"),
        ("train/00.jpeg -1\n", r":1: 'train/00.jpeg -1' has no label, a whole number from 0, at its end"),
        (
            "train/00.jpeg 1 7\n",
            r":1: .*/00.jpeg 1 is absent, train/00.jpeg is there: write one label behind each path",
        ),
        ("train/00.jpeg\t0,0,1\n", r":1: .* is absent, train/00.jpeg is there: write one label behind each path"),
        ("train/00.jpeg 10\n", r":1: label 10 is out of range: the recipe has 10 classes, numbered from 0"),
        ("train/99.jpeg 1\n", r":1: .*train/99.jpeg is absent"),
        ("nowhere/0.jpeg 1\n", r":1: .*nowhere/0.jpeg is absent"),
        ("", "no such file: DATADIR must hold"),
    ],
)
def test_a_bad_list_names_its_line_and_a_missing_one_is_named(tmp_path: Path, content: str, message: str) -> None:
    listed = small.data_set(tmp_path) / "train_list.txt"
    listed.write_text(content)
    if not content:
        listed.unlink()
        shutil.rmtree(tmp_path / "train")
    with pytest.raises(ValueError, match=f"train_list.txt:? ?{message}"):
        data.find(tmp_path, "train", 10)


def fails(images: data.Images, said: str) -> None:
    """What an epoch or two end with."""
    with pytest.raises(RunError, match=said):
        taken(training(images, 4), 20)


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_a_file_that_is_no_image_is_named(tmp_path: Path, content: bytes | None) -> None:
    """When it is trained on; a truncated one by the packer too."""
    victim = small.data_set(tmp_path) / "train/17.jpeg"
    victim.write_bytes(victim.read_bytes()[:1000] if content is None else content)
    fails(data.find(tmp_path, "train", 10), r"train/17\.jpeg: cannot be decoded")
    if content is None:
        with pytest.raises(ValueError, match=r"train/17\.jpeg: cannot be decoded \(it is truncated"):
            pack.pack(tmp_path, tmp_path / "packed", "train")


def test_a_file_that_goes_during_a_run_is_named(tmp_path: Path) -> None:
    images = data.find(small.data_set(tmp_path), "train", 10)
    (tmp_path / "train/17.jpeg").unlink()
    fails(images, r"^\S*train/17\.jpeg: no such file or folder: check the path; restore the data set and start again")


def test_a_node_whose_copy_of_a_file_is_damaged_is_named(tmp_path: Path) -> None:
    """Of a job of several nodes each may have its own copy, and the message told of none of them."""
    images = write(tmp_path, [np.zeros((40, 40, 3), np.uint8)])
    plan = sampling.training_plan(1, batch=1, rank=0, ranks=1, seed=SEED)
    image = data.ImageFormat(size=32)
    for nodes, named in ((1, ""), (2, f"{socket.gethostname()}: ")):
        job = job_of(dgxnnodes=nodes, threads=1)
        config = ReaderConfig.of_rank(job.data, job.cluster, 0, image, batch=1, seed=SEED)
        (tmp_path / "0.jpeg").write_bytes(b"no image")
        with pytest.raises(RunError, match=rf"^{named}{tmp_path}/0\.jpeg: cannot be decoded"):
            taken(data.Loader(images, plan, config, augment=CROPS))
        (tmp_path / "0.jpeg").unlink()
        with pytest.raises(RunError, match=rf"^{named}{tmp_path}/0\.jpeg: no such file"):
            taken(data.Loader(images, plan, config, augment=CROPS))


def packed(form: str, folder: Path, source: Path) -> Path:
    """Both lists of a folder in this form: one file each, or two of TFRecord."""
    folder.mkdir()
    for part, name in (("train", "train"), ("val", "validation")):
        if form == "recordio":
            pack.pack(source, folder, part)
            continue
        images = folder_of_images.read_list(source, part, 10)
        for file, ids in enumerate(np.array_split(np.arange(len(images)), 2)):
            encoded, labels = images.read(ids)
            file_name = folder / f"{name}-{file:05d}-of-00002"
            test_records.write_tfrecord(file_name, encoded, (labels + 1).tolist())
    return folder


@pytest.mark.parametrize("form", ["recordio", "tfrecord"])
def test_packed_images_give_the_folders_batches_bit_for_bit(embedded: Path, tmp_path: Path, form: str) -> None:
    """On each of 2 ranks: over an epoch's end, resumed within one, and an evaluation that sees each image once."""
    roots, seen, image = (embedded, packed(form, tmp_path / "packed", embedded)), list[int](), data.ImageFormat(size=32)
    train, val = ([data.find(root, part, 10) for root in roots] for part in ("train", "val"))
    assert [found.form for found in train] == ["files", form]
    files = val[0]
    assert isinstance(files, folder_of_images.ImageList)

    def alike(sets: list[data.Images], plan: Callable[[], sampling.Plan], count: int, **options: Any) -> list[Batch]:
        """Batches of both that have the same bits."""
        both = [taken(data.Loader(of, plan(), reader(40, image), **options), count) for of in sets]
        for one, other in zip(*both, strict=True):
            assert all(np.array_equal(value, vars(other)[name]) for name, value in vars(one).items())
        return both[0]

    for rank in range(2):
        place = {"batch": 40, "rank": rank, "ranks": 2}
        for start in ({}, {"epoch": 3, "first_step": 15}):
            plan = functools.partial(sampling.training_plan, len(train[0]), seed=SEED, **place, **start)
            alike(train, plan, 20, augment=CROPS)
        plan = functools.partial(sampling.evaluation_plan, len(val[0]), **place)
        for batch in alike(val, plan, sampling.evaluation_steps(360, 80), resize=40):
            assert np.array_equal(batch.label[:, 0], files.labels[batch.ids])
            seen += batch.ids[batch.valid[:, 0] == 1].tolist()
    assert sorted(seen) == list(range(360))


def test_a_packed_label_that_the_recipe_lacks_is_named(embedded: Path, tmp_path: Path) -> None:
    pack.pack(embedded, tmp_path, "train")
    fails(data.find(tmp_path, "train", 9), r"train\.rec, record \d+ .*the recipe's 9 classes: number")


def test_the_decoder_is_told_of_the_largest_image(tmp_path: Path) -> None:
    """Read off the pipeline as DALI serializes it: a CPU's decoder takes the same words, and does nothing with them."""
    paddings = {"device_memory_padding": 36_000_000, "host_memory_padding": 24_000_000}
    hints = {"preallocate_width_hint": 2000, "preallocate_height_hint": 3000, **paddings}
    assert data._hints(2000, 3000) == hints
    assert data._hints(64, 64)["device_memory_padding"] == 16_777_216  # never less than DALI's own
    write(tmp_path, [np.zeros(shape, dtype=np.uint8) for shape in ((64, 64, 3), (3000, 2000, 3), (8, 4000, 3))])
    for largest in (None, (2000, 3000)):
        if largest:
            pack_sizes.find_sizes(tmp_path, "train")
        images = data.find(tmp_path, "train", 10)
        assert images.largest == largest
        for options in ({"augment": CROPS}, {"resize": 40}):
            with closing(data.Loader(images, iter([]), reader(4, data.ImageFormat(size=64)), **options)) as source:
                found = source._pipeline.serialize()
            assert [name.encode() in found for name in hints] == [bool(largest)] * 4


@pytest.mark.parametrize("text", ['{"width": 5}', '{"width": 5, "height": 1e999}', '{"width": 5, "height": 0}', "[]"])
def test_damaged_sizes_are_named(tmp_path: Path, text: str) -> None:
    write(tmp_path, [np.zeros((64, 64, 3), dtype=np.uint8)])
    (tmp_path / "train.sizes.json").write_text(text)
    with pytest.raises(ValueError, match=r"train\.sizes\.json: is damaged or of another version: remove it"):
        data.find(tmp_path, "train", 10)


def header_of(data_set: Path, log: Path, **variables: str) -> dict[str, Any]:
    """Sections of the log's header of a job on this data set."""
    job = {**jobs.TINY, "BATCHSIZE": "2", "DATADIR": str(data_set), "RESULT_FILE": str(log), **variables}
    done = jobs.on_ranks(1, "-m", "harness", cwd=small.checkout(), **job)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(jobs.losses(log)) == 4
    lines = (json.loads(line[2:]) for line in log.read_text().splitlines() if line.startswith("# {"))
    return {name: section for line in lines for name, section in line.items()}


@pytest.mark.xdist_group("ranks")
def test_a_job_of_packed_images_says_so(embedded: Path, tmp_path: Path) -> None:
    dataset = header_of(packed("recordio", tmp_path / "packed", embedded), tmp_path / "result.txt")["dataset"]
    assert (dataset["form"], dataset["train_samples"], dataset["eval_samples"]) == ("recordio", 1437, 360)


@pytest.mark.xdist_group("ranks")
def test_synthetic_data_reads_no_image(tmp_path: Path) -> None:
    """A stall of the input is found by comparison with `DATA=synthetic`: images that cannot be read do not matter."""
    for part in ("train", "val"):
        (tmp_path / f"{part}_list.txt").write_text("bad.jpeg 1\n" * 8)
    (tmp_path / "bad.jpeg").write_text("no image")
    header = header_of(tmp_path, tmp_path / "result.txt", DATA="synthetic", FLAGS_some_setting="3")
    assert header["environment"]["FLAGS_some_setting"] == "3"
    assert header["environment"]["FLAGS_new_executor_serial_run"] == "1"  # set by harness/env.py on a CPU
    fused, operators = header["program"]["fused"], header["program"]["operators"]
    assert fused == {kind: n for kind, n in operators.items() if kind.startswith(("fused", "merged"))}
    assert fused["fused_elemwise_add_activation"] == 4  # one a residual block


def test_synthetic_data_needs_no_data_set_of_the_batchs_size(embedded: Path) -> None:
    """As the README's first line for a GPU system: 8 GPUs have more images a step than the embedded data set has."""
    me = ranks.Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here")
    settings = {"batchsize": 1500, "dgxngpu": 1, "recipe": "nvidia_cosine", "data_cache": str(embedded.parent)}
    task = task_of(job_of(data="synthetic", **settings), me)  # type: ignore[arg-type]
    assert task.dataset.train_samples == IMAGENET_TRAIN
    with pytest.raises(ValueError, match="global batch 1500 is larger than the training set of 1437 images"):
        task_of(job_of(data="real", **settings), me)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["real", "synthetic"])
def test_a_checkpoint_of_synthetic_data_depends_on_no_files(kind: str, embedded: Path, tmp_path: Path) -> None:
    """Records that were packed from known files have these in their header, also if no image is read."""
    me = ranks.Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here")
    job = job_of(data=kind, datadir=str(packed("recordio", tmp_path / "packed", embedded)), batchsize=8, dgxngpu=1)
    task = task_of(job, me)
    source = task.dataset.train_source
    eval_source = task.dataset.eval_source
    assert source is not None and eval_source is not None
    identity = identity_of(job.model, task)
    digests = (identity["train_sha256"], identity["eval_sha256"], identity["train_order"])
    order = f"recordio {task.training_set.numbering()}"
    assert digests == ((source.sha256, eval_source.sha256, order) if kind == "real" else (None, None, None))
