"""Enumerated runs, as Kuang, Brown, Wang profile for ASP-SVM (Machine Learning 101, 2015): for each phase of a program one run with the
other engine in that phase alone, against the program on one engine; and that for either engine.

From the runs of `nested` and `shadow` `plan` finds the phases, and makes the schedules of the policy `oracle` that are to be run. From
the logs of all `phases_of` has for each phase what a change for it gains, with what the changes themselves cost: the sample that the
published method learns from. Which phase a log is of is known from the schedule in its first line.
"""

from dataclasses import dataclass

import numpy as np

from . import ENGINES, NESTED, SHADOW, Refusal
from .oracle import LARGEST, UNIT, Schedule
from .runs import Phase, Run, boundaries, engine_of, same_work

MOST = 20.0
"""A phase is not believed to be faster or slower by more than this factor: what comes behind it differs by chance, too."""


@dataclass
class Enumerated:
    """A run with one phase on the other engine."""

    base: int
    """The engine of the rest."""
    begin: float
    end: float
    """Instructions since the policy began."""
    run: Run


def plan(logs, interval_ms):
    """The schedules that are to be run, by names: of the phases of the work, where a log knows when that began and ended.

    Raises `Refusal` where the logs are of different work, or one engine is not among them.
    """
    names = sorted({log.workload for log in logs})
    if len(names) > 1:
        raise Refusal(f"the logs are of different work (`{'`, `'.join(names)}`): the phases of one are enumerated; give the logs of one "
                      "command")
    runs = [Run.of(log) for log in logs]
    total = same_work(names[0], logs, runs)[0]
    engines = [engine_of(run) for run in runs]
    for engine in (NESTED, SHADOW):
        if engine not in engines:
            raise Refusal(f"no log is of {ENGINES[engine]} paging, and each phase is compared with either engine: add a log of the same "
                          f"command with --policy {ENGINES[engine]}")
    found = boundaries(runs, interval_ms)
    if not found:
        raise Refusal("the logs have no samples in that time: --begin-ms and --end-ms are of the log's VM")
    schedules = {}
    for number, (begin, end) in enumerate(found):
        # At its first instruction a guest is on the engine that it begins with.
        changes = [int(max(np.rint(share * total / UNIT), 1)) for share in (begin, end)]
        if changes[1] > LARGEST:
            raise Refusal(f"the work has {total:.3g} instructions, and a schedule ends at {LARGEST * UNIT:.3g}: record less of it")
        if changes[0] >= changes[1]:
            continue
        for base in (NESTED, SHADOW):
            schedules[f"phase-{number + 1:02}-{ENGINES[1 - base]}"] = Schedule(base, changes)
    return schedules


def of(log):
    """The log as an enumerated run; `None`: it is another one."""
    name, parameters = log.parameters
    changes = [int(change) for change in parameters.get("changes", "").split(":") if change.isdigit()]
    if name != "oracle" or len(changes) != 2:
        return None
    base = SHADOW if parameters.get("first") == ENGINES[SHADOW] else NESTED
    return Enumerated(base, changes[0] * UNIT, changes[1] * UNIT, Run.of(log))


def phases_of(workload, logs, interval_ms):
    """What each enumerated run shows, in the order of the phases; none where no log is of such a run.

    Raises `Refusal` where the runs that they are compared with are missing.
    """
    runs = [(found, log) for log in logs if (found := of(log)) is not None]
    if not runs:
        return []
    others = [(log, Run.of(log)) for log in logs if of(log) is None]
    static = {engine_of(run): run for _, run in others}
    for engine in (NESTED, SHADOW):
        if engine not in static:
            raise Refusal(f"`{workload}` has enumerated runs, but none of {ENGINES[engine]} paging alone, which they are compared with: "
                          f"add a log of the same command with --policy {ENGINES[engine]}")
    same_work(workload, [log for log, _ in others] + [log for _, log in runs], [run for _, run in others] + [each.run for each, _ in runs])
    found = [sample(workload, each, static, interval_ms) for each, _ in sorted(runs, key=lambda pair: (pair[0].begin, pair[0].base))]
    return [phase for phase in found if phase is not None]


def sample(workload, enumerated, static, interval_ms):
    """What the change for one phase gained; `None`: the phase is empty."""
    base, begin, end = static[enumerated.base], enumerated.begin, enumerated.end
    total = base.instructions.sum()
    at_begin, at_end, all_of_it = cycles_at(base, [begin, end, total])
    own_begin, own_all = cycles_at(enumerated.run, [begin, enumerated.run.instructions.sum()])
    contexts = counts(static, enumerated.base, begin / total, end / total, interval_ms)
    if at_end <= at_begin or contexts is None:
        return None
    # All that follows counts: the other engine's tables are filled in the phase, and the first one's again behind it.
    saved = (all_of_it - at_begin) - (own_all - own_begin)
    gain = -np.log(np.clip(1.0 - saved / (at_end - at_begin), 1 / MOST, MOST))
    return Phase(workload, begin / total, end / total, float(gain if enumerated.base == NESTED else -gain), contexts, enumerated.base)


def cycles_at(run, instructions):
    """Cycles of a run until it had executed each of these numbers of instructions."""
    done = np.concatenate([[0.0], np.cumsum(run.instructions)])
    return np.interp(instructions, done, np.concatenate([[0.0], np.cumsum(run.cycles)]))


def counts(static, engine, begin, end, interval_ms):
    """log2(1 + count) of the page faults and of the misses in an interval of a phase on `engine`: 1 × 2."""
    parts = {each: (run.position >= begin) & (run.position < end) for each, run in static.items()}
    sums = {each: [values[part].sum() for values in (run.instructions, run.misses, run.faults, run.span_ns)]
            for (each, part), run in zip(parts.items(), static.values())}  # fmt: skip
    instructions, misses, _, nanos = sums[engine]
    on_shadow, _, faults, _ = sums[SHADOW]
    if min(instructions, nanos, on_shadow) <= 0:
        return None
    # Page faults are seen with shadow paging; the same instructions make as many with nested paging.
    found = np.array([[faults / on_shadow * instructions, misses]]) * (interval_ms * 1e6 / nanos)
    return np.log2(1.0 + found)
