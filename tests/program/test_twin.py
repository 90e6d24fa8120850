"""Gradients of ResNet-50 at the size that users train, in the types in which a GPU stores them (twin.py)."""

import numpy as np
import pytest

from tests.program import lower, twin


@pytest.mark.parametrize("name", ["float16", "tf32"])
def test_values_are_rounded_to_nearest(name: str) -> None:
    """By fractions and exponents: FP16's subnormals and infinities too, and FP32's to TF32 where products read them."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(50_000) * scale for scale in (1e-7, 1e-6, 6e-5, 1.0, 2e4)]
    x = np.concatenate([*parts, [0.0, 1e-8, 2.9e-8, -3.1e-8, 1 + 2**-12, 65519.0, -65520.0, 7e4]]).astype(np.float32)
    exponent = np.frexp(x.astype(np.float64))[1] - 11  # of the last bit
    least = np.maximum(exponent, -24) if name == "float16" else exponent
    expected = np.ldexp(np.round(np.ldexp(x.astype(np.float64), -least)), least)
    if name == "float16":
        expected[np.abs(expected) > 65504] *= np.inf
    found = lower.to_half(x) if name == "float16" else lower.to_bits(x, bits=11)
    assert np.array_equal(found, expected.astype(np.float32))


def test_gradients_of_a_captured_step_are_those_of_fp32() -> None:
    found = twin.row(twin.Case(precision="amp_o2", knobs="cuda_graph=1", images=2))
    assert found.is_sound, found


def test_the_page_has_each_row() -> None:
    page = twin.PAGE.read_text()
    for case in (*twin.CASES, *twin.SHOWN):
        assert case.cells in page, case


@pytest.mark.slow
@pytest.mark.xdist_group("twin")  # one at a time: of two, one took 12.6 GB and was killed
@pytest.mark.parametrize("case", twin.CASES, ids=lambda case: case.cells)
def test_gradients_of_every_job_are_those_of_fp32(case: twin.Case) -> None:
    found = twin.row(case)
    assert found.is_sound, found


@pytest.mark.slow
def test_without_a_scale_they_are_noise() -> None:
    """The door refuses LOSS_SCALE=1 (harness/env.py)."""
    assert min(twin.row(twin.Case(precision="amp_o2", loss_scale=1, images=2)).cosines.values()) < 0.9
