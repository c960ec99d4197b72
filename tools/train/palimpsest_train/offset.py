"""DSP-OFFSET: from a log of random choices to weighted labels (Binary-Offset; Beygelzimer, Langford, KDD 2009), to a linear model."""

from dataclasses import dataclass

import numpy as np

from . import NESTED, SHADOW, Refusal, estimate, intervals, svm
from .model import STAY, Model

TYPICAL = 0.95
"""Share of a log's rewards that weigh what they are; the larger ones weigh as much as the largest of these. In the interval in which
shadow tables are filled for the first time the guest hardly runs, and that reward would outweigh what all later ones say."""
MARGIN = 0.25
"""Of the margin of the support vector machine, within which the engine stays (section 3.2)."""


@dataclass
class Trained:
    """A model and what was learnt on the way."""

    model: Model
    fit: svm.Fit
    logs: list
    """(log, its intervals)."""
    cross_validated: estimate.Difference
    """What models of the other folds gain over the choices of the log, by inverse propensity."""


def labelled(data):
    """Binary-Offset: labels -1 (nested) and 1 (shadow), and weights, of which outliers are capped."""
    action = np.where(data.engine == SHADOW, 1.0, -1.0)
    value = action * data.reward
    weights = np.abs(value)
    return np.where(value >= 0, 1.0, -1.0), np.minimum(weights, np.quantile(weights, TYPICAL))


def train(logs):
    """One model from all these logs.

    Raises `Refusal` where a log is of no use, or their intervals have several lengths.
    """
    read = [(log, intervals.of(log)) for log in logs]
    lengths = sorted({data.interval_ms for _, data in read})
    if len(lengths) > 1:
        raise Refusal("the logs have intervals of " + ", ".join(f"{ms} ms" for ms in lengths) + ", and counts of different times cannot "
                      "be compared: train from logs of one `interval_ms`, or with --specific")
    pairs = [labelled(data) for _, data in read]
    contexts = np.concatenate([data.contexts for _, data in read])
    labels, weights = (np.concatenate(parts) for parts in zip(*pairs))
    fold = svm.folds(np.concatenate([np.full(len(data), number) for number, (_, data) in enumerate(read)]))
    if weights.sum() < 1e-9:
        raise Refusal("no interval of the logs is faster or slower than its phase's mean: there is nothing to learn from")
    fit = svm.fit(contexts, labels, weights, fold)
    model = Model("dsp-offset", *fit.weights, fit.bias, MARGIN, lengths[0])
    return Trained(model, fit, read, cross_validated(read, contexts, labels, weights, fold, fit.c))


def cross_validated(read, contexts, labels, weights, fold, c):
    """What the method gains on intervals that it has not seen."""
    wanted = np.full(len(fold), STAY)
    for number in np.unique(fold):
        out = fold == number
        slopes, bias = svm.fit_once(contexts[~out], labels[~out], weights[~out], c)
        part = Model("dsp-offset", *slopes, bias, MARGIN, 1)
        wanted[out] = part.wanted(contexts[out])
    engine = np.concatenate([data.engine for _, data in read])
    before = np.concatenate([data.before for _, data in read])
    reward = np.concatenate([data.reward for _, data in read])
    # Within the margin the engine stays as it is: what the log had before.
    chosen = np.where(wanted == STAY, before, wanted)
    weight = (chosen == engine) / intervals.PROPENSITY
    return estimate.Difference.of((weight - 1.0) * reward)


def remarks(trained):
    """What was learnt, in lines."""
    lines = []
    for log, data in trained.logs:
        lines.append(f"{log.path}: {len(data)} intervals of {data.interval_ms} ms, {data.left_out} left out; {log.workload}")
        wanted = trained.model.wanted(data.contexts)
        for number in range(int(data.phase.max()) + 1):
            inside = data.phase == number
            lines.append("  " + phase_line(data, wanted, number, inside))
    model, fit = trained.model, trained.fit
    lines.append(f"{model.faults:+z.4f} · log2(1 + page faults) {model.misses:+z.4f} · log2(1 + TLB misses) {model.bias:+z.4f}; "
                 "above the margin shadow, below its negative nested")
    length = float(np.hypot(model.faults, model.misses))
    width = f", {1 / length:.2f} in log2 of counts from 0 to the margin of the support vectors" if length > 1e-3 else "; the same for all counts"
    gains = ", ".join(f"{c:g}: {gain:+.3f}" for c, gain in fit.gains.items())
    lines.append(f"margin {model.margin:g} of 1{width}; C = {fit.c:g}; by cross-validation ({gains})")
    contexts = np.concatenate([data.contexts for _, data in trained.logs])
    wanted = model.wanted(contexts)
    shares = [np.mean(wanted == choice) for choice in (NESTED, SHADOW, STAY)]
    lines.append("of the intervals it wants {:.0%} nested, {:.0%} shadow, {:.0%} as it is".format(*shares))
    lines.append(f"cross-validated gain over random choices: {trained.cross_validated}")
    return lines


def phase_line(data, wanted, number, inside):
    """A phase in a line: length, counts, which engine was faster, and what the model wants."""
    fast = [data.speed[inside & (data.engine == engine)] for engine in (NESTED, SHADOW)]
    if not all(len(part) for part in fast):
        compared = "only one engine by chance"
    else:
        compared = f"shadow {np.exp(np.mean(np.log(fast[SHADOW])) - np.mean(np.log(fast[NESTED]))) - 1:+.1%} instructions per cycle"
    faults, misses = data.contexts[inside].mean(axis=0)
    votes = [np.mean(wanted[inside] == choice) for choice in (NESTED, SHADOW, STAY)]
    most = ("nested", "shadow", "as it is")[int(np.argmax(votes))]
    return (f"phase {number + 1}: {inside.sum()} intervals, log2 of page faults {faults:.1f}, of TLB misses {misses:.1f}; {compared}; "
            f"the model wants {most} in {max(votes):.0%}")
