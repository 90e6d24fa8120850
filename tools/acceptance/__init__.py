"""The checks that a user runs first on a new machine: does it compute right, and how fast?"""

# The checks of each job, in the order in which they run: the figures first, as a crash costs the lines after it.
# A capture (`captured`) binds its process to the GPU, so nothing may come after it.
EACH, LAST = ("losses", "throughput", "memory", "evaluation"), ("lars", "captured")
CHECKS = {
    "fp32": ("sensors", *EACH, "layout", "pooling", "all-reduce", "input", *LAST),
    "tf32": (*EACH, *LAST),
    "amp_o1": (*EACH, "units", *LAST),
    "amp_o2": (*EACH, "units", "pooling", "all-reduce", "input", *LAST),
}
