"""Which samples a rank trains on and evaluates, decided by (seed, epoch) alone.

An epoch is one permutation of the data set, cut into global batches; a rank takes its slice of each. So the
samples of a step depend neither on the number of ranks nor on a library's random state, and a run can
go on from any sample of an epoch.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from program.arrays import Array

# Streams of random numbers drawn from one seed; a stream's number must never change.
STREAM_ORDER, STREAM_AUGMENT = 0, 1

Plan = Iterator[tuple[int, Array, Array]]  # (epoch from 1, sample numbers [batch], valid [batch])


def training_plan(
    samples: int, *, batch: int, rank: int, ranks: int, seed: int, epoch: int = 1, first_step: int = 0
) -> Plan:
    """Yield this rank's training batches as (epoch, sample numbers, valid): those of `epoch`, the next, and so on.

    An epoch is a permutation of all `samples`, drawn by the seed and the epoch. Each step takes the next batch * ranks
    of it, of which rank 0 gets the first `batch`, rank 1 the next, and so on. The rest, too few for a step, is dropped.
    The first of the epochs begins with step `first_step`, counted from 0. All samples are valid. Raises ValueError if
    the data set is too small for one step.
    """
    global_batch = batch * ranks
    steps = steps_per_epoch(samples, global_batch)
    all_valid = np.ones(batch, dtype=bool)
    for current_epoch in itertools.count(epoch):
        order = np.random.default_rng([seed, STREAM_ORDER, current_epoch]).permutation(samples)
        for step in range(first_step, steps):
            start = step * global_batch + rank * batch
            yield current_epoch, order[start : start + batch], all_valid
        first_step = 0  # later epochs are whole


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Return the number of whole global batches in the training set. Raises ValueError where there is none."""
    if samples < global_batch:
        raise ValueError(
            f"global batch {global_batch} is larger than the training set of {samples} images: "
            "lower BATCHSIZE, DGXNGPU or DGXNNODES"
        )
    return samples // global_batch


def evaluation_steps(samples: int, global_batch: int) -> int:
    """Return the number of batches that each rank evaluates, the last of which may be filled up."""
    return math.ceil(samples / global_batch)


def evaluation_plan(samples: int, *, batch: int, rank: int, ranks: int) -> Plan:
    """Yield this rank's evaluation batches as (evaluation, sample numbers, valid), one evaluation after the other.

    All ranks have equally many batches. One that lacks samples is filled up with copies, which are not valid: over all
    ranks each sample is valid once an evaluation. Of 5 samples, 2 ranks and batches of 2, rank 0 evaluates [0, 2] and
    [4, 4], of which the second 4 is not valid. Rank 1 evaluates [1, 3] and [0, 0], which is not valid at all.
    """
    own_samples = np.arange(rank, samples, ranks)
    for evaluation in itertools.count(1):
        for step in range(evaluation_steps(samples, batch * ranks)):
            start = step * batch
            ids = own_samples[start : start + batch]
            is_valid = np.arange(batch) < len(ids)
            to_repeat = ids if len(ids) else np.zeros(1, dtype=int)  # sample 0 stands in where none is left
            yield evaluation, np.resize(to_repeat, batch), is_valid  # `resize` repeats them until the batch is full


def uniform(seed: int, epoch: int, ids: Array, count: int) -> Array:
    """Return `count` random numbers for each sample of `ids`, evenly spread in [0, 1): [len(ids), count] float64.

    They depend on (seed, epoch, id) alone: a sample is augmented in the same way on any rank and in any batch. A change
    here changes the images of every run.
    """
    # Each epoch has a sequence of numbers. Sample 0 gets its first `count` numbers, sample 1 the next, and so on.
    start_of_sequence = np.random.SeedSequence([seed, STREAM_AUGMENT, epoch]).generate_state(1, np.uint64)[0]
    first_of_sample = ids.astype(np.uint64)[:, None] * np.uint64(count)  # [len(ids), 1]
    places = first_of_sample + np.arange(count, dtype=np.uint64)  # in the sequence: [len(ids), count]
    random_bits = _split_mix_64(start_of_sequence, places)

    upper_53_bits = random_bits >> np.uint64(11)  # as many as a float64 holds exactly
    uniform_numbers: Array = upper_53_bits.astype(np.float64) * 2.0**-53
    return uniform_numbers


def _split_mix_64(start: np.uint64, n: Array) -> Array:
    """Return the numbers `n`, counted from 0, of SplitMix64's sequence from the state `start`; all are uint64.

    SplitMix64 (Steele et al. 2014) adds a constant to its state before each number, and mixes the bits of the sum. So
    number n is the mix of start + (n + 1) * constant. Sums and products wrap around at 2**64.
    """
    state = start + (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed
