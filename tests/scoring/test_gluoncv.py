"""Logs of programs that were made of GluonCV's train_imagenet.py: other words, several machines."""

import re
from pathlib import Path

import pytest

from scoring.importers import read_record
from tests.scoring import samples

GLUONCV = samples.gluoncv(samples.run_of(samples.steady(240), epoch_steps=80))


def in_other_words(kvstore: str) -> str:
    """The same training by a program that closes its epochs and states its GPUs in other words."""
    text = re.sub(r"\] speed: (\S+) samples/sec\ttime cost: ", r"] Speed: \1 samples/sec\tTime cost=", GLUONCV)
    text = re.sub(r"\] validation: err-top1=0\.24\S* err-top5=\S+", "] Validation-accuracy=0.760000", text)
    return text.replace("num_gpus=8", f"gpus='0,1,2,3,4,5,6,7', kvstore='{kvstore}'")


def test_epochs_and_gpus_in_other_words(tmp_path: Path) -> None:
    plain = read_record(samples.write(tmp_path, "plain.log", GLUONCV))
    record = read_record(samples.write(tmp_path, "other.log", in_other_words("device")))
    assert (record.devices, record.truncated) == (plain.devices, plain.truncated) == (8, False)
    assert [epoch.printed_rate for epoch in record.epochs] == [epoch.printed_rate for epoch in plain.epochs]
    assert [(quality.name, quality.value, quality.epoch) for quality in record.quality] == [
        ("accuracy", 0.76, epoch) for epoch in range(3)
    ]


def test_rates_of_one_worker_of_several_make_no_figure(tmp_path: Path) -> None:
    log = samples.write(tmp_path, "a.log", in_other_words("dist_sync_device"))
    status, _, error = samples.scoring("score", log, "--protocol", "window")
    assert status == 2 and "line 1: kvstore='dist_sync_device': each worker prints a rate of its own" in error


@pytest.mark.parametrize(
    ("rows_of_epochs", "truncated"),
    [(3, None), (1, True)],  # rows of a later epoch show that ends of epochs are printed in words that are not known
)
def test_a_log_without_ends_of_epochs(tmp_path: Path, rows_of_epochs: int, *, truncated: bool | None) -> None:
    lines = [line for line in GLUONCV.splitlines(keepends=True) if not line.startswith("[Epoch ")]
    text = "".join(lines[: 1 + 8 * rows_of_epochs])
    assert read_record(samples.write(tmp_path, "a.log", text)).truncated is truncated
