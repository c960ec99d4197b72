"""ASP-SVM: phases of a workload, labelled by what either engine gains in them, from runs that enumerate the choices.

Kuang, Brown, Wang run a program with one engine for one phase and the other for the rest, for each phase, and compare with that
other engine alone. Here all runs of one workload are laid over each other by the share of its instructions that is done, so
that any runs will do in which each phase was run on both engines: one with nested and one with shadow paging, at least. What is
not seen so is the cost of changes between phases.
"""

from dataclasses import dataclass

import numpy as np

from . import ENGINES, NESTED, SHADOW, Refusal, phases, svm
from .model import Model

INTERVAL_MS = 1000
SAME_WORK = 0.1
"""By how much runs of the same work may differ in instructions: a slow one takes more timer interrupts."""
LEAST_INTERVALS = 2
"""Intervals of a phase; shorter ones are mostly their edges."""


@dataclass
class Phase:
    """A part of a workload, on both engines."""

    workload: str
    begin: float
    end: float
    """Shares of the workload's instructions."""
    gain: float
    """log(cycles with nested paging / cycles with shadow paging) for each instruction: above 0 shadow paging is better."""
    contexts: np.ndarray
    """log2(1 + page faults) and log2(1 + misses of the TLB) of an interval, on nested and on shadow tables: 2 × 2."""


@dataclass
class Trained:
    """A model and what was learnt on the way."""

    model: Model
    fit: svm.Fit
    logs: list
    phases: list
    cross_validated: float | None
    """The mean gain that models of the other phases have in each, as a logarithm; `None` with too few phases."""


@dataclass
class Run:
    """A log as arrays over its samples."""

    position: np.ndarray
    """Share of the instructions that is done at the middle of each sample."""
    engine: np.ndarray
    instructions: np.ndarray
    cycles: np.ndarray
    misses: np.ndarray
    faults: np.ndarray
    span_ns: np.ndarray

    @classmethod
    def of(cls, log):
        table = log.samples.slice(1)
        instructions = table["instructions"].to_numpy().astype(float)
        done = np.cumsum(instructions)
        cycles = (table["guest_cycles"] + table["host_cycles"]).to_numpy().astype(float)
        arrays = (table[name].to_numpy().astype(float) for name in ("misses", "faults", "span_ns"))
        return cls((done - instructions / 2) / max(done[-1], 1.0) if len(done) else done, table["engine"].to_numpy(), instructions, cycles, *arrays)


def train(logs, interval_ms=INTERVAL_MS):
    """One model from all these logs.

    Raises `Refusal` where the choices of a workload are not all there.
    """
    workloads = {}
    for log in logs:
        workloads.setdefault(log.workload, []).append(log)
    found = [phase for workload, group in workloads.items() for phase in of_workload(workload, group, interval_ms)]
    contexts = np.concatenate([phase.contexts for phase in found])
    gains = np.repeat([phase.gain for phase in found], 2)
    labels, weights = np.where(gains >= 0, 1.0, -1.0), np.abs(gains)
    if weights.sum() < 1e-9:
        raise Refusal("neither engine is faster in any phase of the logs: there is nothing to learn from")
    fold = np.repeat(np.arange(len(found)), 2)
    fit = svm.fit(contexts, labels, weights, fold if len(found) > 2 else np.zeros(len(fold)))
    model = Model("asp-svm", *fit.weights, fit.bias, 0.0, interval_ms)
    return Trained(model, fit, logs, found, cross_validated(found, fit.c))


def of_workload(workload, logs, interval_ms):
    """The phases of the runs of one workload."""
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


def same_work(workload, logs, runs):
    """The instructions of each run; `Refusal` where they are not of the same work."""
    totals = [run.instructions.sum() for run in runs]
    if not all(totals):
        raise Refusal(f"{logs[int(np.argmin(totals))].path}: the guest executed nothing in it")
    if min(totals) < (1 - SAME_WORK) * max(totals):
        low, high = logs[int(np.argmin(totals))].path, logs[int(np.argmax(totals))].path
        raise Refusal(f"{low} and {high} are of `{workload}`, but the guest executed {min(totals):.3g} instructions in one and "
                      f"{max(totals):.3g} in the other: runs of the same work are compared; use a command that does a fixed amount")
    return totals


def boundaries(runs, interval_ms):
    """Begins and ends of the phases, by the run that was longest on one engine."""
    base = max(runs, key=lambda run: (max(np.mean(run.engine == engine) for engine in (NESTED, SHADOW)), run.span_ns.sum()))
    number = (np.cumsum(base.span_ns) - base.span_ns) // (interval_ms * 1e6)
    _, first = np.unique(number, return_index=True)
    instructions, cycles = (np.add.reduceat(values, first) for values in (base.instructions, base.cycles))
    ends = phases.of_speed(instructions / np.maximum(cycles, 1.0), least=LEAST_INTERVALS)
    done = np.cumsum(instructions) / instructions.sum()
    marks = np.concatenate([[0.0], done[ends - 1]])
    return list(zip(marks, marks[1:]))


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
    if len(found) < 3:
        return None
    gains = []
    for out in range(len(found)):
        others = [phase for number, phase in enumerate(found) if number != out]
        values = np.repeat([phase.gain for phase in others], 2)
        slopes, bias = svm.fit_once(np.concatenate([phase.contexts for phase in others]), np.where(values >= 0, 1.0, -1.0), np.abs(values), c)
        wanted = np.sign(found[out].contexts @ slopes + bias)
        gains.append(found[out].gain / 2 * wanted.mean())
    return float(np.mean(gains))


def remarks(trained):
    """What was learnt, in lines."""
    lines = [f"{log.path}: {len(log.samples)} samples of {log.mode}; {log.workload}" for log in trained.logs]
    for number, phase in enumerate(trained.phases):
        faults, misses = phase.contexts.mean(axis=0)
        lines.append(f"  phase {number + 1}, {phase.begin:.0%} to {phase.end:.0%} of `{phase.workload}`: log2 of page faults {faults:.1f}, "
                     f"of TLB misses {misses:.1f}; shadow {np.expm1(phase.gain):+.1%} instructions per cycle")
    model, fit = trained.model, trained.fit
    lines.append(f"{model.faults:+z.4f} · log2(1 + page faults) {model.misses:+z.4f} · log2(1 + TLB misses) {model.bias:+z.4f}; "
                 "above 0 shadow, below nested")
    gains = ", ".join(f"{each:g}: {gain:+.3f}" for each, gain in fit.gains.items()) or "too few phases to choose"
    lines.append(f"C = {fit.c:g}; by cross-validation ({gains})")
    value = trained.cross_validated
    told = "too few phases" if value is None else f"{np.expm1(value):+.1%} in phases that were left out"
    lines.append(f"cross-validated gain over random choices: {told}")
    return lines
