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
    """Yield this rank's training batches as sample numbers, epoch after epoch without end.

    In each epoch the samples are in another order, drawn by the seed and the epoch. If that of 9 samples is 7 3 0 5 8 1
    4 2 6, then 2 ranks with batches of 2 train two steps, and sample 6 is left out:

        rank 0: [7, 3], then [8, 1]
        rank 1: [0, 5], then [4, 2]

    Args:
        samples: Number of samples in the training set.
        batch: Samples of a step on one rank.
        rank: Number of this rank, from 0.
        ranks: Number of all ranks.
        seed: Seed of the run, which must be the same on every rank.
        epoch: The epoch to begin with, from 1.
        first_step: The step to begin with in that epoch, from 0. Later epochs are whole.

    Yields:
        (epoch, sample numbers [batch], valid [batch]). All samples are valid.

    Raises:
        ValueError: The data set is too small for one step.
    """
    steps = steps_per_epoch(samples, batch * ranks)
    all_valid = np.ones(batch, dtype=bool)
    for current_epoch in itertools.count(epoch):
        order = np.random.default_rng([seed, STREAM_ORDER, current_epoch]).permutation(samples)
        batches = order[: steps * ranks * batch].reshape(steps, ranks, batch)
        first = first_step if current_epoch == epoch else 0  # later epochs are whole
        for step in range(first, steps):
            yield current_epoch, batches[step, rank], all_valid


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Return the number of whole global batches in the training set.

    Args:
        samples: Number of samples in the training set.
        global_batch: Samples of a step over all ranks.

    Raises:
        ValueError: There is not one whole batch.
    """
    if samples < global_batch:
        raise ValueError(
            f"global batch {global_batch} is larger than the training set of {samples} images: "
            "lower BATCHSIZE, DGXNGPU or DGXNNODES"
        )
    return samples // global_batch


def evaluation_steps(samples: int, global_batch: int) -> int:
    """Return the number of batches that each rank evaluates; the last one may be filled up with copies.

    Args:
        samples: Number of samples in the evaluation set.
        global_batch: Samples that all ranks evaluate at once.
    """
    return math.ceil(samples / global_batch)


def evaluation_plan(samples: int, *, batch: int, rank: int, ranks: int) -> Plan:
    """Yield this rank's evaluation batches as sample numbers, one evaluation after the other without end.

    The samples are dealt out to the ranks in turn. All ranks have equally many batches, so some are filled up with
    copies, which are not valid. With 5 samples, 2 ranks and batches of 2:

        rank 0: [0, 2], then [4, 4], where the second 4 is a copy
        rank 1: [1, 3], then [0, 0], where both are copies

    Args:
        samples: Number of samples in the evaluation set.
        batch: Samples that one rank evaluates at once.
        rank: Number of this rank, from 0.
        ranks: Number of all ranks.

    Yields:
        (number of the evaluation from 1, sample numbers [batch], valid [batch]). `valid` is False for a copy.
    """
    own_samples = np.arange(rank, samples, ranks)
    steps = evaluation_steps(samples, batch * ranks)
    for evaluation in itertools.count(1):
        for step in range(steps):
            start = step * batch
            ids = own_samples[start : start + batch]
            is_valid = np.arange(batch) < len(ids)
            yield evaluation, _filled_up(ids, batch), is_valid


def _filled_up(ids: Array, batch: int) -> Array:
    """Return a full batch: some samples, repeated until it is full.

    Args:
        ids: Sample numbers. If there are none, the batch is filled with sample 0.
        batch: Samples of a full batch.
    """
    to_repeat = ids if len(ids) else np.zeros(1, dtype=int)
    return np.resize(to_repeat, batch)


def uniform(seed: int, epoch: int, ids: Array, count: int) -> Array:
    """Return random numbers for some samples, evenly spread in [0, 1), as a float64 array [len(ids), count].

    For the same `count`, the numbers of a sample depend only on the seed, the epoch and the sample's own number. So a
    sample is augmented in the same way on any rank and in any batch. A change in this function changes the images of
    every run.

    Args:
        seed: Seed of the run.
        epoch: Number of the epoch.
        ids: Sample numbers.
        count: How many random numbers each sample gets.
    """
    # Each epoch has a sequence of numbers, from which each sample takes `count`. With a count of 3, sample 0 takes the
    # numbers at the places 0, 1 and 2, sample 1 those at 3, 4 and 5, and so on.
    start_of_sequence = np.random.SeedSequence([seed, STREAM_AUGMENT, epoch]).generate_state(1, np.uint64)[0]
    first_place_of_sample = ids.astype(np.uint64) * np.uint64(count)
    places_in_sequence = first_place_of_sample[:, None] + np.arange(count, dtype=np.uint64)  # [len(ids), count]
    return _fractions(_split_mix_64(start_of_sequence, places_in_sequence))


def _fractions(random_bits: Array) -> Array:
    """Return random bits as numbers in [0, 1), by their upper 53 bits: so many a float64 holds exactly.

    Args:
        random_bits: uint64 array of any shape.
    """
    upper_53_bits = random_bits >> np.uint64(11)
    fractions: Array = upper_53_bits.astype(np.float64) * 2.0**-53
    return fractions


def _split_mix_64(start: np.uint64, n: Array) -> Array:
    """Return numbers of the random sequence SplitMix64 by their places in it; all values are uint64.

    SplitMix64 (Steele et al. 2014) adds a constant to its state before each number, and mixes the bits of the sum. So
    number n is the mix of start + (n + 1) * constant. Sums and products wrap around at 2**64.

    Args:
        start: State before the first number, a seed.
        n: Places of the wanted numbers, counted from 0, in an array of any shape.
    """
    state = start + (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed
