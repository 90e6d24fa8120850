"""Traits of FCN-HRNetW18; `harness/traits.py` explains each field."""

from harness.traits import MemoryPeaks, Traits

# As the null GPU shows them (docs/program.md).
PEAKS = MemoryPeaks(
    crop_pixels=1024 * 512,
    mib={
        "fp32": {2: 2614, 4: 5165, 8: 10256},
        "amp_o1": {2: 1416, 4: 2740, 8: 5388},
        "amp_o2": {2: 1435, 4: 2758, 8: 5406},
    },
    other_recipes=("", "scenes_small"),
)

TRAITS = Traits(
    layouts=("NCHW",),
    captures_steps=True,
    reads_pretrained=True,
    most_half_pixels=64 * 1024 * 512,  # docs/program.md has the measurement
    cpu_settings={
        "FLAGS_eager_delete_tensor_gb": "1"
    },  # a sixth faster, having many small tensors; ResNet-50 gains nothing
    gpu_settings={"FLAGS_dynamic_static_unified_comm": "0"},  # passes/sync_bn.py says why, and refuses another value
    memory=PEAKS,
)
