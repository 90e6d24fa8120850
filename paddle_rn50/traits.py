"""Traits of ResNet-50; `harness/traits.py` explains each field."""

from harness.traits import DecoderMemory, MemoryPeaks, Traits

# As the null GPU shows them (docs/program.md).
PEAKS = MemoryPeaks(
    crop_pixels=224 * 224,
    mib={
        "fp32": {32: 2798, 64: 5597, 128: 10951, 192: 16328, 256: 20922},
        "amp_o1": {32: 1821, 64: 3386, 128: 6516, 192: 9642, 256: 12772},
        "amp_o2": {32: 1868, 64: 3435, 128: 6565, 192: 9699, 256: 12829},
    },
    other_recipes=("", "digits_small"),
)

# For a thread: a bound of what NVIDIA's scripts give for ImageNet, 211,025,920 and 140,544,512 bytes with hints of
# 5980 x 6430 pixels. On an H200 a thread took 223 MiB of the GPU. Its JPEG unit took 3164 MiB at a batch of 8, 3436 at
# 256, and 444 with hints of 2048 x 1024. The unit of an A100 has fewer engines; no A100 was measured.
NVJPEG = DecoderMemory(
    device_bytes=6, host_bytes=4, unit_bytes=87, unit_bytes_of_batch=1_150_000, usual_largest=(5980, 6430)
)

TRAITS = Traits(
    layouts=("NCHW", "NHWC"),
    holds_fixed_loss_scale=True,
    captures_steps=True,
    only_measured={"recorded": "nvidia_cosine"},
    memory=PEAKS,
    decoder=NVJPEG,
)
