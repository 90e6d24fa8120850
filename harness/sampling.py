"""Which samples a rank trains on and evaluates, decided by (seed, epoch) alone.

An epoch is one permutation of the data set, cut into global batches; a rank takes its slice of each. So the
samples of a step depend neither on the number of ranks nor on a library's random state, and a run can
go on from any sample of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Streams of random numbers drawn from one seed; a stream's number must never change.
STREAM_ORDER, STREAM_AUGMENT = 0, 1


def training_batches(
    samples: int, *, batch: int, rank: int, ranks: int, seed: int, epoch: int, first_step: int = 0
) -> Iterator[np.ndarray]:
    """Sample numbers [batch] of each step of `epoch` (from 1) for one rank; the last partial batch is dropped.

    Raises:
        ValueError: the data set is smaller than one global batch.
    """
    steps = steps_per_epoch(samples, batch * ranks)
    order = np.random.default_rng([seed, STREAM_ORDER, epoch]).permutation(samples)
    for step in range(first_step, steps):
        start = step * batch * ranks + rank * batch
        yield order[start : start + batch]


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Whole global batches in the data set.

    Raises:
        ValueError: there is none.
    """
    if samples < global_batch:
        raise ValueError(
            f"global batch {global_batch} is larger than the training set of {samples} images: "
            "lower BATCHSIZE, DGXNGPU or DGXNNODES"
        )
    return samples // global_batch


def evaluation_batches(samples: int, *, batch: int, rank: int, ranks: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(sample numbers [batch], valid [batch]) such that over all ranks each sample is valid exactly once.

    Every rank yields the same number of batches; what fills up a batch is marked as not valid.
    """
    mine = np.arange(rank, samples, ranks)
    batches = -(-samples // (batch * ranks))
    for b in range(batches):
        ids = mine[b * batch : (b + 1) * batch]
        valid = np.arange(batch) < len(ids)
        yield np.resize(ids if len(ids) else np.array([0]), batch), valid


def uniform(seed: int, epoch: int, ids: np.ndarray, count: int) -> np.ndarray:
    """Uniform numbers in [0, 1), shape [len(ids), count], that depend on (seed, epoch, id) alone.

    SplitMix64 (Steele et al. 2014) over a counter: a generator object for each sample would cost more than
    reading it.
    """
    key = np.random.SeedSequence([seed, STREAM_AUGMENT, epoch]).generate_state(1, np.uint64)[0]
    counter = ids.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    x = key + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
