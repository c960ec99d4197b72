"""Phases of a workload: change points of mean and variance, found exactly by PELT (Killick, Fearnhead, Eckley, 2012).

The recursion is our own. That of ruptures 1.1.10 drops candidates that lead to the best segmentation where segments have a least
length (`tests/test_phases.py` has a case), and takes a minute for 2000 points. Here a candidate is given up only once what
rules it out could be used: after that least length.
"""

import numpy as np

LEAST = 12
"""Intervals of a phase. In shorter ones chance gives too often only one of the engines."""
NOISE = 0.02
"""Standard deviation of log speed below which nothing is taken for a change: runs of one engine by chance are no phases."""


def cost(sums, squares, start, end, floor):
    """Minus twice the logarithm of the likelihood of normal segments, up to what all have in common."""
    length = end - start
    mean = (sums[end] - sums[start]) / length
    variance = np.maximum((squares[end] - squares[start]) / length - mean * mean, 0.0)
    return length * np.log(variance + floor)


def change_points(signal, penalty, least, floor):
    """Ends of the segments, the last one the length of the signal, that make sum of costs + penalty for each the least.

    `least`: points of a segment. `floor` is added to each variance. A signal shorter than `least` is one segment.
    """
    signal = np.asarray(signal, dtype=float)
    length = len(signal)
    if length < 2 * least:
        return np.array([length])
    # Differences of large sums would lose digits.
    signal = signal - signal.mean()
    sums = np.concatenate([[0.0], np.cumsum(signal)])
    squares = np.concatenate([[0.0], np.cumsum(signal * signal)])
    best = np.full(length + 1, np.inf)
    best[0] = 0.0
    last = np.zeros(length + 1, dtype=int)
    # Beginnings of the last segment that may still be the best ones; `doomed`: from which end on they no longer are.
    starts, doomed = np.array([0]), np.array([length + 1])
    for end in range(least, length + 1):
        if end >= 2 * least:
            starts, doomed = np.append(starts, end - least), np.append(doomed, length + 1)
        keep = doomed > end
        starts, doomed = starts[keep], doomed[keep]
        totals = best[starts] + cost(sums, squares, starts, end, floor)
        which = int(np.argmin(totals))
        best[end], last[end] = totals[which] + penalty, starts[which]
        # Cutting at `end` is cheaper than such a start for all later ends that leave room for a segment after `end`.
        worse = (totals > best[end]) & (doomed > end + least)
        doomed[worse] = end + least
    ends, end = [], length
    while end > 0:
        ends.append(end)
        end = last[end]
    return np.array(ends[::-1])


def of_speed(speed, least=LEAST):
    """Ends of the phases of a sequence of instructions per cycle. The penalty is BIC's for mean, variance and place."""
    signal = np.log(np.maximum(speed, 1e-9))
    return change_points(signal, 3 * np.log(max(len(signal), 2)), least, NOISE**2)
