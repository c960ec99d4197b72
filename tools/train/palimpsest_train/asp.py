"""ASP-SVM: phases of a workload, labelled by what either engine gains in them, from runs that enumerate the choices.

Kuang, Brown, Wang run a program with one engine for one phase and the other for the rest, for each phase, and compare with that
other engine alone (`enumerated`). Where there are no such runs, all of a workload are laid over each other by the share of its
instructions that is done, so that any runs will do in which each phase was run on both engines: one with nested and one with shadow
paging, at least. What is not seen so is the cost of changes between phases.
"""

from dataclasses import dataclass

import numpy as np

from . import ENGINES, NESTED, SHADOW, Refusal, enumerated, svm
from .model import Model
from .runs import LEAST_INTERVALS, Phase, Run, boundaries, same_work

INTERVAL_MS = 1000


@dataclass
class Trained:
    """A model and what was learnt on the way."""

    model: Model
    fit: svm.Fit
    logs: list
    phases: list
    cross_validated: float | None
    """The mean gain that models of the other phases have in each, as a logarithm; `None` with too few phases."""


def train(logs, interval_ms=INTERVAL_MS):
    """One model from all these logs.

    Raises `Refusal` where the choices of a workload are not all there.
    """
    workloads = {}
    for log in logs:
        workloads.setdefault(log.workload, []).append(log)
    found = [phase for workload, group in workloads.items() for phase in of_workload(workload, group, interval_ms)]
    contexts = np.concatenate([phase.contexts for phase in found])
    labels, weights = labelled(found)
    if weights.sum() < 1e-9:
        raise Refusal("neither engine is faster in any phase of the logs: there is nothing to learn from")
    # Both samples of a phase are too much alike to be in different folds.
    places = sorted({(phase.workload, phase.begin) for phase in found})
    fold = np.repeat([places.index((phase.workload, phase.begin)) for phase in found], [len(phase.contexts) for phase in found])
    fit = svm.fit(contexts, labels, weights, fold if len(places) > 2 else np.zeros(len(fold)))
    model = Model("asp-svm", *fit.weights, fit.bias, 0.0, interval_ms)
    return Trained(model, fit, logs, found, cross_validated(found, fit.c))


def labelled(found):
    """Labels -1 (nested) and 1 (shadow), and weights, of all contexts of these phases."""
    gains = np.repeat([phase.gain for phase in found], [len(phase.contexts) for phase in found])
    return np.where(gains >= 0, 1.0, -1.0), np.abs(gains)


def of_workload(workload, logs, interval_ms):
    """The phases of the runs of one workload."""
    if found := enumerated.phases_of(workload, logs, interval_ms):
        return found
    runs = [Run.of(log) for log in logs]
    same_work(workload, logs, runs)
    seen = {engine for run in runs for engine in np.unique(run.engine)}
    if len(seen) < 2:
        only = ENGINES[int(seen.pop())]
        raise Refusal(f"all logs of `{workload}` ({', '.join(str(log.path) for log in logs)}) are of {only} paging: asp-svm compares "
                      f"both engines; add a log of the same command with --policy {ENGINES[1 - ENGINES.index(only)]}")
    found = []
    for begin, end in boundaries(runs, interval_ms):
        phase = compare(workload, runs, begin, end, interval_ms)
        if phase is not None:
            found.append(phase)
    if not found:
        raise Refusal(f"`{workload}` has no phase that its logs run on both engines for {LEAST_INTERVALS} intervals of {interval_ms} ms: "
                      "add logs with --policy nested and --policy shadow, or take a smaller --interval-ms")
    return found


def compare(workload, runs, begin, end, interval_ms):
    """A phase on both engines; `None` where one of them is not seen in it."""
    sums = np.zeros((2, 5))
    for run in runs:
        for engine in (NESTED, SHADOW):
            part = (run.position >= begin) & (run.position < end) & (run.engine == engine)
            values = (run.instructions, run.cycles, run.misses, run.faults, run.span_ns)
            sums[engine] += [value[part].sum() for value in values]
    instructions, cycles, misses, faults, nanos = sums.T
    if instructions.min() <= 0 or cycles.min() <= 0 or nanos.min() < LEAST_INTERVALS * interval_ms * 1e6:
        return None
    # Page faults are seen with shadow paging; the same instructions make as many with nested paging.
    for_each = instructions * (interval_ms * 1e6 / nanos)
    counts = np.stack([faults[SHADOW] / instructions[SHADOW] * for_each, misses / instructions * for_each], axis=1)
    gain = np.log(cycles[NESTED] / instructions[NESTED]) - np.log(cycles[SHADOW] / instructions[SHADOW])
    return Phase(workload, begin, end, float(gain), np.log2(1.0 + counts))


def cross_validated(found, c):
    """What models of the other phases gain in each, over either engine by chance."""
    if len({(phase.workload, phase.begin) for phase in found}) < 3:
        return None
    gains = []
    for out in found:
        others = [phase for phase in found if (phase.workload, phase.begin) != (out.workload, out.begin)]
        slopes, bias = svm.fit_once(np.concatenate([phase.contexts for phase in others]), *labelled(others), c)
        wanted = np.sign(out.contexts @ slopes + bias)
        gains.append(out.gain / 2 * wanted.mean())
    return float(np.mean(gains))


def remarks(trained):
    """What was learnt, in lines."""
    lines = [f"{log.path}: {len(log.samples)} samples of {log.mode}; {log.workload}" for log in trained.logs]
    for number, phase in enumerate(trained.phases):
        faults, misses = phase.contexts.mean(axis=0)
        what = "phase" if phase.base is None else f"{ENGINES[1 - phase.base]} paging alone"
        lines.append(f"  {number + 1}: {what} from {phase.begin:.0%} to {phase.end:.0%} of `{phase.workload}`: log2 of page faults "
                     f"{faults:.1f}, of TLB misses {misses:.1f}; shadow {np.expm1(phase.gain):+.1%} instructions per cycle")
    model, fit = trained.model, trained.fit
    lines.append(f"{model.faults:+z.4f} · log2(1 + page faults) {model.misses:+z.4f} · log2(1 + TLB misses) {model.bias:+z.4f}; "
                 "above 0 shadow, below nested")
    gains = ", ".join(f"{each:g}: {gain:+.3f}" for each, gain in fit.gains.items()) or "too few phases to choose"
    lines.append(f"C = {fit.c:g}; by cross-validation ({gains})")
    value = trained.cross_validated
    told = "too few phases" if value is None else f"{np.expm1(value):+.1%} in phases that were left out"
    lines.append(f"cross-validated gain over random choices: {told}")
    return lines
