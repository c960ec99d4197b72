"""Oracle: when the engine should have changed, from runs of the same work on either engine.

The runs are laid over each other by the share of the work's instructions that is done. In each slice of the work one of the engines
takes fewer cycles; a dynamic programme chooses an engine for each slice, so that cycles and the cost of the changes are the least.
The result is an upper bound for policies, not one: it knows the future.
"""

from dataclasses import dataclass

import numpy as np

from . import ENGINES, NESTED, SHADOW, Refusal
from .model import VERSION
from .runs import Run, engine_of, same_work

MOST_CHANGES = 32
UNIT = 1000
"""Limit and unit of a schedule: those of `abi/src/schedule.rs`."""
LARGEST = 2**32 - 1
MOST_SLICES = 4000
CHANGE_CYCLES = 1_000_000
"""What a change is taken to cost, the faults after it included, unless a person knows better."""


@dataclass
class Schedule:
    """Engines for the parts of a work."""

    first: int
    changes: list
    """In thousands of instructions."""

    def words(self):
        """As `--policy` and the monitor's `mode` take it."""
        word = "oracle" + (",first=shadow" if self.first == SHADOW else "")
        return word + (",changes=" + ":".join(map(str, self.changes)) if self.changes else "")

    def toml(self, remarks):
        """The file's text, with `remarks` as comments."""
        lines = [f"# {line}".rstrip() for line in remarks]
        lines += [f"version = {VERSION}", 'policy = "oracle"', f'first = "{ENGINES[self.first]}"', f"changes = {self.changes}"]
        return "\n".join(lines) + "\n"


@dataclass
class Trained:
    """A schedule, and what it should bring."""

    model: Schedule
    logs: list
    cycles: np.ndarray
    """For each slice and engine."""
    engines: np.ndarray
    """The engine of each slice."""
    change_cycles: int


def train(logs, change_cycles=CHANGE_CYCLES):
    """The best schedule for the work of these logs.

    Raises `Refusal` where they are of different work, or one engine is not among them.
    """
    names = sorted({log.workload for log in logs})
    if len(names) > 1:
        raise Refusal(f"the logs are of different work (`{'`, `'.join(names)}`): a schedule is for one; give the logs of one command, "
                      "or --specific")
    runs = [Run.of(log) for log in logs]
    total = float(np.mean(same_work(names[0], logs, runs)))
    count = int(min(MOST_SLICES, min(len(run.position) for run in runs)))
    edges = np.linspace(0.0, 1.0, count + 1)
    cycles = np.empty((count, 2))
    engines = [engine_of(run) for run in runs]
    for log, engine in zip(logs, engines):
        if engine is None:
            raise Refusal(f"{log.path}: its instructions were executed on either engine: a schedule is made from runs of one "
                          "engine (--policy nested, --policy shadow)")
    for engine in (NESTED, SHADOW):
        each = [np.diff(done(run, edges, total)) for run, its in zip(runs, engines) if its == engine]
        if not each:
            raise Refusal(f"no log is of {ENGINES[engine]} paging: a schedule compares both; add a log of the same command with "
                          f"--policy {ENGINES[engine]}")
        cycles[:, engine] = np.mean(each, axis=0)
    chosen = best(cycles, change_cycles)
    ends = np.flatnonzero(np.diff(chosen)) + 1
    changes = np.maximum(np.rint(edges[ends] * total / UNIT).astype(np.int64), 1)
    if len(changes) and changes[-1] > LARGEST:
        raise Refusal(f"the work has {total:.3g} instructions, and a schedule ends at {LARGEST * UNIT:.3g}: record less of it")
    # Two that are rounded to one undo each other.
    unique, times = np.unique(changes, return_counts=True)
    model = Schedule(int(chosen[0]), [int(change) for change, count in zip(unique, times) if count % 2])
    return Trained(model, logs, cycles, chosen, change_cycles)


def done(run, edges, total):
    """Cycles until each share of the work, as of a run of `total` instructions."""
    own = run.instructions.sum()
    share = np.concatenate([[0.0], np.cumsum(run.instructions) / own])
    cycles = np.concatenate([[0.0], np.cumsum(run.cycles)])
    return np.interp(edges, share, cycles) * (total / own)


def best(cycles, change_cycles, most=MOST_CHANGES):
    """The engine of each slice: the least cycles with `change_cycles` for each change, and at most `most` changes."""
    count = len(cycles)
    # For each number of changes so far and each engine: the least cost, and whether the last slice had the other engine.
    cost = np.full((most + 1, 2), np.inf)
    cost[0] = cycles[0]
    changed = np.zeros((count, most + 1, 2), dtype=bool)
    for number in range(1, count):
        other = np.full((most + 1, 2), np.inf)
        other[1:] = cost[:-1, ::-1] + change_cycles
        changed[number] = other < cost
        cost = np.minimum(cost, other) + cycles[number]
    changes, engine = np.unravel_index(int(np.argmin(cost)), cost.shape)
    chosen = np.empty(count, dtype=np.int8)
    for number in range(count - 1, -1, -1):
        chosen[number] = engine
        if changed[number, changes, engine]:
            changes, engine = changes - 1, 1 - engine
    return chosen


def remarks(trained):
    """What was found, in lines."""
    lines = [f"{log.path}: {len(log.samples)} samples of {log.mode}; {log.workload}" for log in trained.logs]
    changes = len(trained.model.changes)
    cycles = trained.cycles[np.arange(len(trained.engines)), trained.engines].sum() + changes * trained.change_cycles
    lines.append(f"{len(trained.engines)} slices; {changes} changes at {trained.change_cycles} cycles each, {MOST_CHANGES} at most; "
                 f"{(trained.engines == SHADOW).mean():.0%} of the work with shadow paging")
    gains = [f"{trained.cycles[:, engine].sum() / cycles - 1:+.2%} over {ENGINES[engine]}" for engine in (NESTED, SHADOW)]
    lines.append(f"expected: {cycles:.4g} cycles, {', '.join(gains)}")
    return lines
