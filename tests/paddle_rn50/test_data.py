"""The input pipeline: lists, crops, evaluation, and what it says of bad files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from PIL import Image
from scipy.stats import ks_2samp

from harness import ranks, sampling, train
from harness.embedded import make
from harness.env import Job
from harness.loader import ReaderConfig
from paddle_rn50 import data, digits
from paddle_rn50.config import IMAGENET_TRAIN, Augmentation
from runlog.errors import RunError
from tests import jobs
from tests.harness import small, test_records
from tools import pack

WHOLE = Augmentation(area_min=1.0, area_max=1.0, aspect_min=1.0, aspect_max=1.0, flip=0.0)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("data") / digits.NAME, digits.write)


def reader(batch: int, size: int = 64, **options: object) -> ReaderConfig:
    image = data.ImageFormat(size=size, **options)  # type: ignore[arg-type]
    return ReaderConfig(batch=batch, image=image, device="cpu", device_id=0, threads=1, seed=3)


def write(folder: Path, pictures: list[np.ndarray], quality: int = 95) -> data.ImageList:
    """A data set of these pictures, each with its number as its label, modulo ten."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    lines = []
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"train/{i}.jpeg", quality=quality, subsampling=0)
        lines.append(f"train/{i}.jpeg {i % 10}\n")
    (folder / "train_list.txt").write_text("".join(lines))
    return data.read_list(folder, "train_list.txt", 10)


def denormalize(image: np.ndarray) -> np.ndarray:
    """[C, H, W] normalized to [H, W, C] pixels."""
    return image.transpose(1, 2, 0) * np.array(data.STD) + np.array(data.MEAN)


def train_loader(images: data.Images, config: ReaderConfig, augment: Augmentation) -> data.Loader:
    plan = sampling.training_plan(len(images), batch=config.batch, rank=0, ranks=1, seed=config.seed)
    return data.Loader(images, plan, config, augment=augment)


def test_the_embedded_set_has_a_fixed_stratified_split(embedded: Path) -> None:
    train, val = (data.read_list(embedded, f"{part}_list.txt", 10) for part in ("train", "val"))
    assert (len(train), len(val)) == (1437, 360)
    assert not {Path(p).name for p in train.paths} & {Path(p).name for p in val.paths}
    assert np.ptp(np.bincount(val.labels)) <= 2  # the classes have 174 to 183 samples in all
    with Image.open(embedded / train.paths[0]) as picture:
        assert (picture.format, picture.size, picture.mode) == ("JPEG", (64, 64), "RGB")


def test_evaluation_is_resize_and_centre_crop(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 300)
    picture = np.stack([np.tile(ramp, (200, 1)), np.tile(ramp[:200, None], (1, 300)), np.full((200, 300), 90)], 2)
    images = write(tmp_path, [picture.astype("uint8")])
    plan = sampling.evaluation_plan(1, batch=1, rank=0, ranks=1)
    loader = data.Loader(images, plan, reader(1, size=112), resize=128)
    actual = denormalize(next(loader).image[0])
    loader.close()
    with Image.open(tmp_path / "train/0.jpeg") as opened:
        resized = opened.resize((192, 128), Image.Resampling.BILINEAR)
        expected = np.asarray(resized.crop((40, 8, 152, 120)), dtype=float)
    assert np.abs(actual - expected).mean() < 1.0  # grey levels of 255


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
    loader = train_loader(images, reader(16, size=48), Augmentation())
    boxes = []
    for _ in range(count // 16 * 6):
        for image in next(loader).image:
            pixels = denormalize(image)
            x, y = pixels[24, :, 0] / 250 * width, pixels[:, 24, 1] / 250 * height
            # the output's pixel centres span 47/48 of the crop
            boxes.append(((x[-1] - x[0]) * 48 / 47, (y[-1] - y[0]) * 48 / 47, min(x[0], x[-1]), y[0]))
    loader.close()
    w, h, left, top = np.array(boxes).T
    flipped = w < 0
    w = np.abs(w)
    area, aspect = w * h / (width * height), w / h
    assert 0.35 < flipped.mean() < 0.65  # 384 draws: 0.5 +- 6 standard deviations
    assert area.min() > 0.08 * 0.8  # reading the edges off costs a few per cent
    assert area.max() <= 1.02
    assert aspect.min() > 0.75 * 0.93
    assert aspect.max() < 4 / 3 * 1.07
    # Kolmogorov-Smirnov distance to torchvision's way of drawing; 384 against 20,000 draws: 0.1 is one in 10^3.
    expected = np.array([torchvision_crop(np.random.default_rng(i), height, width) for i in range(20_000)])
    for found, drawn in ((area, expected[:, 0]), (aspect, expected[:, 1])):
        assert ks_2samp(found, drawn).statistic < 0.1
    assert (left > -3).all()
    assert (left + w < width + 5).all()
    assert (top + h < height + 5).all()
    assert np.corrcoef(area, left)[0, 1] < -0.2  # small crops go further to the right


def test_a_sample_looks_the_same_at_any_rank_count_and_batch(embedded: Path) -> None:
    images = data.read_list(embedded, "train_list.txt", 10)

    def pictures(batch: int, ranks: int) -> dict[int, np.ndarray]:
        found = {}
        for rank in range(ranks):
            plan = sampling.training_plan(len(images), batch=batch, rank=rank, ranks=ranks, seed=3)
            loader = data.Loader(images, plan, reader(batch, size=32), augment=Augmentation())
            for _ in range(32 // (batch * ranks)):
                result = next(loader)
                found |= {int(i): image.copy() for i, image in zip(result.ids, result.image, strict=True)}
            loader.close()
        return found

    one, many = pictures(32, 1), pictures(4, 2)
    assert one.keys() == many.keys()
    assert all(np.array_equal(one[i], many[i]) for i in one)


def test_the_next_epoch_has_another_order_and_other_crops(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = write(tmp_path, list(rng.integers(0, 255, (8, 64, 64, 3), dtype=np.uint8)))
    loader = train_loader(images, reader(8, size=32), Augmentation())
    first, second = ((b.ids, b.image.copy()) for b in (next(loader), next(loader)))
    loader.close()
    assert not np.array_equal(first[0], second[0])
    assert sorted(first[0]) == sorted(second[0])
    for i, sample in enumerate(first[0]):
        assert not np.array_equal(first[1][i], second[1][list(second[0]).index(sample)])


def test_layouts_and_padding_hold_the_same_pixels(embedded: Path) -> None:
    images = data.read_list(embedded, "train_list.txt", 10)
    outputs = {}
    for name, options in {
        "nchw": {},
        "nhwc": {"layout": "NHWC"},
        "nhwc4": {"layout": "NHWC", "channels": 4},
        "half": {"half": True},
    }.items():
        loader = train_loader(images, reader(4, **options), WHOLE)
        outputs[name] = next(loader).image.copy()
        loader.close()
    assert np.array_equal(outputs["nhwc"], outputs["nchw"].transpose(0, 2, 3, 1))
    assert np.array_equal(outputs["nhwc4"][..., :3], outputs["nhwc"])
    assert not outputs["nhwc4"][..., 3].any()
    assert outputs["half"].dtype == np.float16
    np.testing.assert_allclose(outputs["half"], outputs["nchw"], atol=2e-3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the list is empty"),
        ("train/0.jpeg\n", r":1: 'train/0.jpeg' has no label"),
        ("train/0.jpeg 1\ntrain/0.jpeg one\n", r":2: 'train/0.jpeg one' has no label"),
        ("train/0.jpeg 10\n", r":1: label 10 is out of range: the recipe has 10 classes"),
        ("train/9.jpeg 1\n", r":1: .*train/9.jpeg is absent"),
        ("nowhere/0.jpeg 1\n", r":1: .*nowhere/0.jpeg is absent"),
    ],
)
def test_a_bad_list_names_its_line(tmp_path: Path, content: str, message: str) -> None:
    write(tmp_path, [np.zeros((8, 8, 3), dtype=np.uint8)])
    (tmp_path / "train_list.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        data.read_list(tmp_path, "train_list.txt", 10)


def test_empty_lines_of_a_list_are_no_samples_and_a_missing_list_is_named(tmp_path: Path) -> None:
    write(tmp_path, [np.zeros((8, 8, 3), dtype=np.uint8)])
    (tmp_path / "train_list.txt").write_text("\ntrain/0.jpeg 1\n\n")
    assert data.read_list(tmp_path, "train_list.txt", 10).paths == ("train/0.jpeg",)
    with pytest.raises(ValueError, match=r"train_list.txt: no such file: DATADIR must hold"):
        data.read_list(tmp_path / "none", "train_list.txt", 10)


def fails(images: data.Images, said: str) -> None:
    """What an epoch or two end with."""
    loader = train_loader(images, reader(4, size=32), Augmentation())
    with pytest.raises(RunError, match=said):
        for _ in range(20):
            next(loader)
    loader.close()


@pytest.mark.parametrize("damaged", [lambda jpeg: b"not an image", lambda jpeg: jpeg[:1000], lambda jpeg: b""])
def test_a_file_that_is_no_image_is_named(tmp_path: Path, damaged: Callable[[bytes], bytes]) -> None:
    rng = np.random.default_rng(0)
    images = write(tmp_path, list(rng.integers(0, 255, (40, 64, 64, 3), dtype=np.uint8)))
    victim = tmp_path / "train/17.jpeg"
    victim.write_bytes(damaged(victim.read_bytes()))
    fails(images, r"train/17\.jpeg: cannot be decoded")


def tfrecords(folder: Path, source: Path) -> Path:
    """Both lists of a folder as TFRecord, in two files each."""
    folder.mkdir()
    for part, name in (("train", "train"), ("val", "validation")):
        images = data.read_list(source, f"{part}_list.txt", 10)
        encoded, labels = images.read(np.arange(len(images)))
        half = len(images) // 2
        for file, mine in enumerate((slice(None, half), slice(half, None))):
            test_records.write_tfrecord(
                folder / f"{name}-{file:05d}-of-00002", [i.tobytes() for i in encoded[mine]], labels[mine] + 1
            )
    return folder


def packed(form: str, folder: Path, source: Path) -> Path:
    """The folder's images in this form."""
    if form == "tfrecord":
        return tfrecords(folder, source)
    for part in pack.PARTS:
        pack.pack(source, folder, part)
    return folder


def fed(images: data.Images, plan: sampling.Plan, batches: int, **options: object) -> list[np.ndarray]:
    """What a program is fed in some batches, each of 40 samples."""
    source = data.Loader(images, plan, reader(40, size=32), **options)  # type: ignore[arg-type]
    found = []
    for _ in range(batches):
        batch = next(source)
        found += [np.array(array) for array in (batch.image, batch.label, batch.valid, batch.ids)]
    source.close()
    return found


@pytest.mark.parametrize("form", ["recordio", "tfrecord"])
def test_packed_images_give_the_folders_batches_bit_for_bit(embedded: Path, tmp_path: Path, form: str) -> None:
    """On each of 2 ranks: over an epoch's end, resumed within one, and an evaluation that sees each image once."""
    other = packed(form, tmp_path / "packed", embedded)
    images = {part: [data.find(root, part, 10) for root in (embedded, other)] for part in ("train", "val")}
    assert [found.form for found in images["train"]] == ["files", form]
    seen: list[int] = []
    for rank in range(2):
        place = {"batch": 40, "rank": rank, "ranks": 2}
        for start in ({}, {"epoch": 3, "first_step": 15}):
            train = [
                fed(found, sampling.training_plan(len(found), seed=3, **place, **start), 20, augment=Augmentation())
                for found in images["train"]
            ]
            assert all(np.array_equal(a, b) for a, b in zip(*train, strict=True))
        steps = sampling.evaluation_steps(360, 80)
        val = [fed(found, sampling.evaluation_plan(len(found), **place), steps, resize=40) for found in images["val"]]
        assert all(np.array_equal(a, b) for a, b in zip(*val, strict=True))
        labels, valid, ids = (np.concatenate(val[0][part::4]) for part in (1, 2, 3))
        assert np.array_equal(labels[:, 0], images["val"][0].labels[ids])
        seen += ids[valid[:, 0] == 1].tolist()
    assert sorted(seen) == list(range(360))


def test_a_packed_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write(tmp_path, list(rng.integers(0, 255, (40, 64, 64, 3), dtype=np.uint8)))
    victim = tmp_path / "train/17.jpeg"
    victim.write_bytes(victim.read_bytes()[:2000])
    pack.pack(tmp_path, tmp_path / "packed", "train")
    images = data.find(tmp_path / "packed", "train", 10)
    fails(images, r"train\.rec, record 17 at byte \d+: cannot be decoded \(.*truncated")


def test_a_packed_label_that_the_recipe_lacks_is_named(embedded: Path, tmp_path: Path) -> None:
    pack.pack(embedded, tmp_path, "train")
    fails(data.find(tmp_path, "train", 9), r"train\.rec, record \d+ .*the recipe has 9 classes")


def test_the_decoder_is_told_of_the_largest_image(tmp_path: Path) -> None:
    """Read off the pipeline as DALI serializes it: a CPU's decoder takes the same words, and does nothing with them."""
    names = (b"preallocate_width_hint", b"preallocate_height_hint", b"device_memory_padding", b"host_memory_padding")
    shapes = [(64, 64, 3), (3000, 2000, 3), (8, 4000, 3)]
    write(tmp_path, [np.zeros(shape, dtype=np.uint8) for shape in shapes])
    for known in (False, True):
        if known:
            pack.find_sizes(tmp_path, "train")
        images = data.find(tmp_path, "train", 10)
        assert images.largest == ((2000, 3000) if known else None)
        for options in ({"augment": Augmentation()}, {"resize": 40}):
            source = data.Loader(images, iter([]), reader(4), **options)
            found = source._pipeline.serialize()
            source.close()
            assert [name in found for name in names] == [known] * 4
    assert data._hints((2000, 3000)) == {
        "preallocate_width_hint": 2000,
        "preallocate_height_hint": 3000,
        "device_memory_padding": 36_000_000,
        "host_memory_padding": 24_000_000,
    }
    assert data._hints((64, 64))["device_memory_padding"] == 16_777_216  # never less than DALI's own
    (tmp_path / "train.sizes.json").write_text('{"width": 5}')
    with pytest.raises(ValueError, match=r"train\.sizes\.json: holds no width and height"):
        data.find(tmp_path, "train", 10)


def header_of(log: Path) -> dict[str, Any]:
    """Sections of a log's header."""
    lines = (json.loads(line[2:]) for line in log.read_text().splitlines() if line.startswith("# {"))
    return {name: section for line in lines for name, section in line.items()}


@pytest.mark.xdist_group("ranks")
def test_a_job_of_packed_images_says_so(embedded: Path, tmp_path: Path) -> None:
    log, folder = tmp_path / "result.txt", packed("recordio", tmp_path / "packed", embedded)
    job = {**jobs.TINY, "BATCHSIZE": "4", "DATADIR": str(folder), "RESULT_FILE": str(log)}
    done = jobs.on_ranks(1, "-m", "harness", cwd=small.checkout(), **job)
    assert done.returncode == 0, done.stderr[-2000:]
    dataset = header_of(log)["dataset"]
    assert (dataset["form"], dataset["train_samples"], dataset["eval_samples"]) == ("recordio", 1437, 360)


@pytest.mark.xdist_group("ranks")
def test_synthetic_data_reads_no_image(tmp_path: Path) -> None:
    """A stall of the input is found by comparison with `DATA=synthetic`: images that cannot be read do not matter."""
    for part in ("train", "val"):
        (tmp_path / f"{part}_list.txt").write_text("bad.jpeg 1\n" * 8)
    (tmp_path / "bad.jpeg").write_text("no image")
    log = tmp_path / "result.txt"
    job = {**jobs.TINY, "BATCHSIZE": "2", "DATADIR": str(tmp_path), "RESULT_FILE": str(log)}
    done = jobs.on_ranks(1, "-m", "harness", cwd=small.checkout(), **job, DATA="synthetic", FLAGS_some_setting="3")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(jobs.losses(log)) == 4
    header = header_of(log)
    assert header["environment"]["FLAGS_some_setting"] == "3"
    assert header["environment"]["FLAGS_new_executor_serial_run"] == "1"  # set by harness/libraries.py on a CPU
    fused, operators = header["program"]["fused"], header["program"]["operators"]
    assert fused == {kind: n for kind, n in operators.items() if kind.startswith(("fused", "merged"))}
    assert fused["fused_elemwise_add_activation"] == 4  # one a residual block


def test_synthetic_data_needs_no_data_set_of_the_batchs_size(embedded: Path) -> None:
    """As the README's first line for a GPU system: 8 GPUs have more images a step than the embedded data set has."""
    me = ranks.Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here")
    settings = {"batchsize": 1500, "dgxngpu": 1, "recipe": "nvidia_cosine", "data_cache": str(embedded.parent)}
    task = train.configured(Job(data="synthetic", **settings), me)  # type: ignore[arg-type]
    assert task.train_samples == IMAGENET_TRAIN
    with pytest.raises(ValueError, match="global batch 1500 is larger than the training set of 1437 images"):
        train.configured(Job(data="real", **settings), me)  # type: ignore[arg-type]
