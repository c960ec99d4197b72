"""Change points against an exact dynamic programme, and beside those of ruptures."""

import unittest
import warnings

import numpy as np

from palimpsest_train import phases


def total(signal, ends, penalty, floor):
    """What a segmentation costs, computed from its segments alone."""
    begins = np.concatenate([[0], ends[:-1]])
    return sum((end - begin) * np.log(np.var(signal[begin:end]) + floor) + penalty for begin, end in zip(begins, ends))


def exact(signal, penalty, least, floor):
    """The least cost of any segmentation: every last segment of every beginning, without pruning."""
    best = [0.0] + [np.inf] * len(signal)
    for end in range(least, len(signal) + 1):
        for begin in range(end - least + 1):
            if np.isfinite(best[begin]):
                own = (end - begin) * np.log(np.var(signal[begin:end]) + floor) + penalty
                best[end] = min(best[end], best[begin] + own)
    return best[-1]


def signal(rng, least):
    """Levels and deviations that change, with the two speeds of two engines on top."""
    length = int(rng.integers(2 * least, 60))
    levels = np.repeat(rng.normal(size=10), 6)[:length] * rng.choice([0, 0.1, 0.5])
    return rng.normal(size=length) * rng.choice([0.02, 0.1]) + levels + 0.1 * rng.integers(0, 2, length)


class Phases(unittest.TestCase):
    """What `change_points` finds."""

    def test_exact_on_small_cases(self):
        rng = np.random.default_rng(1)
        several = 0
        for case in range(200):
            least = int(rng.choice([1, 2, 4, 8, 12]))
            values, floor = signal(rng, least), float(rng.choice([1e-6, 4e-4, 1e-2]))
            penalty = 3 * np.log(len(values)) * rng.choice([0.2, 1, 2])
            ends = phases.change_points(values, penalty, least, floor)
            self.assertTrue(np.all(np.diff(np.concatenate([[0], ends])) >= least), f"case {case}: {ends}")
            several += len(ends) > 1
            self.assertAlmostEqual(total(values, ends, penalty, floor), exact(values, penalty, least, floor), 6, f"case {case}")
        self.assertGreater(several, 50, "most signals are one phase: nothing was tried")

    def test_ruptures_misses_what_it_prunes(self):
        # The reason for a recursion of our own: with a least length ruptures' is not exact. Where a later ruptures is, and
        # as fast, it can take its place.
        import ruptures

        warnings.simplefilter("ignore")
        rng, missed = np.random.default_rng(1), 0
        for least in (4, 12):
            for _ in range(150):
                values = signal(rng, least)
                penalty = 3 * np.log(len(values)) * rng.choice([0.5, 1, 2])
                cost = ruptures.costs.CostNormal().fit(values)
                theirs = np.array(ruptures.Pelt(custom_cost=cost, min_size=least, jump=1).fit(values).predict(penalty))
                ours = phases.change_points(values, penalty, least, 1e-6)
                difference = total(values, theirs, penalty, 1e-6) - total(values, ours, penalty, 1e-6)
                self.assertGreater(difference, -1e-6, "ours is never worse")
                missed += difference > 1e-6
        self.assertGreater(missed, 0)

    def test_known_phases(self):
        rng = np.random.default_rng(2)
        speed = np.concatenate([np.full(50, 1.0), np.full(30, 0.5), np.full(60, 0.9)]) * np.exp(0.03 * rng.normal(size=140))
        ends = phases.of_speed(speed)
        self.assertEqual(len(ends), 3, ends)
        self.assertTrue(np.all(np.abs(ends - [50, 80, 140]) <= 1), ends)

    def test_short_and_constant(self):
        self.assertEqual(list(phases.of_speed(np.ones(5))), [5])
        self.assertEqual(list(phases.of_speed(np.ones(500))), [500])
