"""What policies have gained in runs of their own, beside the estimates: whether these hold.

A run of the same work is laid over the log by the share of the guest's instructions that is done. Its speed is taken at the log's
intervals, so that it is the mean of the same parts of the work that the estimates are of.
"""

import numpy as np

from . import Refusal
from .runs import SAME_WORK


def speeds(run, source, data):
    """The logarithms of a run's instructions per cycle at the intervals `data` of the log `source`.

    Raises `Refusal` for a run of other work.
    """
    theirs, ours = (done(log.samples, "instructions") for log in (run, source))
    if run.workload != source.workload or abs(theirs[-1] / max(ours[-1], 1) - 1) > SAME_WORK:
        raise Refusal(f"{run.path}: {theirs[-1]:.0f} instructions of `{run.workload}`, and {source.path} has {ours[-1]:.0f} of "
                      f"`{source.workload}`: make it with the same command")
    cycles = done(run.samples, "guest_cycles") + done(run.samples, "host_cycles")
    at = np.array([data.periods[position] for position in data.position]) - 1
    places = ours[at] / max(ours[-1], 1) * theirs[-1]
    begin, end = np.interp(places, theirs, cycles).T
    return np.log(np.maximum(places[:, 1] - places[:, 0], 1) / np.maximum(end - begin, 1))


def done(samples, name):
    """What had been counted by the end of each sample; the first one is the hypervisor's sum of what was before."""
    counted = samples[name].to_numpy().astype(float)
    return np.cumsum(np.concatenate([[0.0], counted[1:]]))


def compared(own, log, runs, gained):
    """In words, of a run's speeds: gains over the log and over the runs of `nested` and `shadow`, and which of the intervals of the
    estimates `gained` they are in."""
    words = []
    for name, estimates in gained.items():
        base = log if name == "the log" else runs.get(name)
        if base is None:
            words.append("–")
            continue
        mean = float(np.mean(own - base))
        inside = [label for label, one in (("IPS", estimates.ips), ("DR", estimates.dr)) if one.low - 1e-9 <= mean <= one.high + 1e-9]
        place = {0: "in neither", 1: f"in {inside[0]} alone" if inside else "", 2: "in both"}[len(inside)]
        words.append(f"{estimates.ips.percent(mean)}, {place}")
    return words
