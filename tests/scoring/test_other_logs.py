"""What an importer must not take for something else: silent ranks, decimal commas, rows of evaluations, copies."""

import re
from pathlib import Path

import pytest

from scoring.record import InputError
from tests.scoring import samples
from tests.scoring.samples import scoring
from tests.scoring.test_importers import MMENGINE, read, run, same_rows


@pytest.mark.parametrize("name", sorted(set(samples.WRITERS) - {"mllog"}))
def test_decimal_commas_are_refused(tmp_path: Path, name: str) -> None:
    """`batch_cost: 1,2500` is not 1 s. No tool prints such numbers; a log that went through another program may."""
    text = samples.WRITERS[name](samples.run_of([1.25] * 240, epoch_steps=120))
    assert read(tmp_path, text, name).windows
    commas = re.sub(r"(?<=\d)\.(?=\d)", ",", text)
    with pytest.raises(InputError):
        read(tmp_path, commas, name, format=name)


def test_mmengine_says_how_many_devices_run(tmp_path: Path) -> None:
    """mmengine prints its world size as `GPU number`."""
    assert read(tmp_path, MMENGINE).devices is None
    record = read(tmp_path, "    Distributed training: True\n    GPU number: 16\n" + MMENGINE)
    assert (record.devices, record.field_lines["devices"]) == (16, 2)


def test_a_log_of_two_programs_keeps_its_start(tmp_path: Path) -> None:
    """Each line stands twice. The second banner is a copy, and no start that failed."""
    banner = "==        PaddleClas is powered by PaddlePaddle !        ==\n"
    text = samples.paddleclas_static(run())
    launcher, rest = text.split("[2023/07/28 07:49:52]", 1)
    text = f"{launcher}{banner}[2023/07/28 07:49:52]{rest}"
    twice = "".join(f"{line}\n{line}\n" for line in text.splitlines())
    clean, copied = read(tmp_path, text), read(tmp_path, twice)
    assert same_rows(clean, copied) and (clean.devices, copied.devices) == (8, 8) and copied.segment is None
    failed = f"{launcher}{banner}OSError\n{banner}[2023/07/28 07:49:52]{rest}"
    assert read(tmp_path, failed).segment is not None


def test_an_empty_section_amp_states_no_precision(tmp_path: Path) -> None:
    """`AMP : None` is a section that the command line took away."""
    text = samples.paddleclas_dygraph(run())
    none = re.sub(r"AMP : \n.*level : O2", "AMP : None", text)
    assert none != text and read(tmp_path, text).precision == "amp_o2" and read(tmp_path, none).precision is None
