"""Runs of the same work: as arrays over their samples, laid over each other by the instructions that are done, cut into phases."""

from dataclasses import dataclass

import numpy as np

from . import NESTED, SHADOW, Refusal, phases

SAME_WORK = 0.1
"""By how much runs of the same work may differ in instructions: a slow one takes more timer interrupts."""
LEAST_INTERVALS = 2
"""Intervals of a phase; shorter ones are mostly their edges."""
MOSTLY = 0.9
"""Share of its instructions that a run of one engine spends on it."""


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
    """log2(1 + page faults) and log2(1 + misses of the TLB) of an interval, a row for each engine that the label is for."""
    base: int | None = None
    """The engine of the rest of the run, where one phase alone was on the other one; `None`: runs of both were compared."""


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
    time_ns: np.ndarray
    """The VM's time at the end of each sample."""
    work: np.ndarray
    """Which samples are of the work, at least in part."""
    knows_work: bool

    @classmethod
    def of(cls, log):
        table = log.samples.slice(1)
        instructions = table["instructions"].to_numpy().astype(float)
        done = np.cumsum(instructions)
        cycles = (table["guest_cycles"] + table["host_cycles"]).to_numpy().astype(float)
        misses, faults, span_ns, time_ns = (table[name].to_numpy().astype(float) for name in ("misses", "faults", "span_ns", "time_ns"))
        position = (done - instructions / 2) / max(done[-1], 1.0) if len(done) else done
        work = (time_ns > log.begin_ns) & (time_ns - span_ns < log.end_ns)
        return cls(position, table["engine"].to_numpy(), instructions, cycles, misses, faults, span_ns, time_ns, work, log.knows_work)


def engine_of(run):
    """The engine of a run; `None`: it was on both. A guest that has no paging yet is on nested tables, whatever was asked for."""
    share = run.instructions[run.engine == SHADOW].sum() / max(run.instructions.sum(), 1.0)
    return None if MOSTLY > share > 1 - MOSTLY else SHADOW if share >= MOSTLY else NESTED


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
    """Begins and ends of the phases, as shares of the instructions: by the first run that knows when its work began and ended, and of
    the work alone, or else by the run that was longest on one engine. None if the work has no samples."""
    longest = max(runs, key=lambda run: (max(np.mean(run.engine == engine) for engine in (NESTED, SHADOW)), run.span_ns.sum()))
    base = next((run for run in runs if run.knows_work), longest)
    inside = base.work
    if not inside.any():
        return []
    spans = base.span_ns[inside]
    number = (np.cumsum(spans) - spans) // (interval_ms * 1e6)
    _, first = np.unique(number, return_index=True)
    instructions, cycles = (np.add.reduceat(values[inside], first) for values in (base.instructions, base.cycles))
    ends = phases.of_speed(instructions / np.maximum(cycles, 1.0), least=LEAST_INTERVALS)
    before = base.instructions[: int(np.argmax(inside))].sum()
    done = (before + np.cumsum(instructions)) / base.instructions.sum()
    marks = np.concatenate([[before / base.instructions.sum()], done[ends - 1]])
    return list(zip(marks, marks[1:]))
