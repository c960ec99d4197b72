"""Intervals of a log of the policy `random`: what was known when an engine was drawn, which one it was, and what came of it.

The draws are made again from the seed in the log (`hv/src/paging/policy/random.rs`), and compared with the engines that were
in force. So each interval's propensity is known and not estimated: one half for either engine.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from . import ENGINES, SHADOW, Refusal, phases

PROPENSITY = 0.5
"""Of either engine in each interval of `random`."""
LEAST = 40
"""Intervals that a log must have: with fewer nothing can be told from chance."""


@dataclass
class Intervals:
    """Intervals that can be learnt from, in the order of time; one element of each array for each."""

    counts: np.ndarray
    """Page faults and misses of the TLB in the interval before, as the hypervisor's policies know them: integers, n × 2."""
    before: np.ndarray
    """The engine of the interval before."""
    engine: np.ndarray
    """The engine that was drawn."""
    speed: np.ndarray
    """Instructions of the guest for each cycle, the hypervisor's cycles included."""
    phase: np.ndarray
    """The phase that it belongs to, from 0."""
    reward: np.ndarray
    """log(speed / mean speed of its phase)."""
    position: np.ndarray
    """The interval's number among all of the log, with those that are left out."""
    periods: list
    """For each interval of the log: its rows in the table of samples, as (first, last + 1)."""
    left_out: int
    """Intervals without a use: the first one, those outside of the work, those whose engine is not the one that was drawn, idle ones, and
    those in which too little was counted."""
    interval_ms: int

    @property
    def contexts(self):
        """log2(1 + count), in floating point: n × 2."""
        return np.log2(1.0 + self.counts)

    def __len__(self):
        return len(self.engine)


def draws(seed, count):
    """The first `count` engines that `random` draws: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    mask, engines = (1 << 64) - 1, []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        engines.append((z ^ z >> 31) >> 63)
    return np.array(engines, dtype=np.int8)


def known_faults(rate, instructions):
    """Page faults of an interval in which they are not counted: as many as the last known rate, in a million instructions, gives."""
    return rate * instructions // 1_000_000


def of(log, least=LEAST):
    """The intervals of a log.

    Raises `Refusal` for a log whose engines were not drawn by chance, and for one that is too short.
    """
    name, parameters = log.parameters
    if log.mode is None:
        raise Refusal(f"{log.path}: it does not say which policy ran, because each VM had its own: make one with "
                      "`cargo pal run --policy random`")
    if name != "random":
        raise Refusal(f"{log.path}: its engines were chosen by {log.mode}, not by chance, so that it does not show what the "
                      "other engine would have done: make a log with `cargo pal run --policy random`")
    seed, interval_ms = int(parameters.get("seed", 1)), int(parameters.get("interval_ms", 1000))
    table, periods = cut(log.samples, interval_ms)
    drawn = draws(seed, len(table) + 1)
    engine = table["engine"].to_numpy()
    if len(table) >= least and len(np.unique(engine)) < 2:
        raise Refusal(f"{log.path}: all of its {len(table)} intervals ran on {ENGINES[engine[0]]} tables, so that it shows only one "
                      "action: make a longer log, or shorter intervals (`--policy random,interval_ms=N`)")
    # The samples begin one period after the policy: the hypervisor's first sum has nothing to be compared with. Where they
    # were lost the draws no longer fit, and the rest is refused below.
    as_drawn = (engine == drawn[:-1]) & table["pure"].to_numpy()
    # A guest that sleeps shows nothing, and the boot nothing of the work.
    of_work = (table["begin_ns"].to_numpy() >= log.begin_ns) & (table["end_ns"].to_numpy() <= log.end_ns)
    usable = as_drawn & of_work & (table["instructions"].to_numpy() > 0) & ~table["blind"].to_numpy()
    if log.dropped:
        raise Refusal(f"{log.path}: {log.dropped} samples were dropped, so that the draws cannot be told: make it again with "
                      "longer periods (`--sample-ms`)")
    if len(table) >= least and as_drawn.mean() < 0.75:
        raise Refusal(f"{log.path}: in {np.sum(~as_drawn)} of {len(table)} intervals the engine is not the one that seed {seed} draws: "
                      "something else chose it too; make a log with one policy from its start, and without commands of the monitor")
    return contexts(log, table, periods, usable, interval_ms, least)


def cut(samples, interval_ms):
    """Sums of the intervals, as the policy cuts them: each ends with the first sample that makes it long enough.

    The first sample of a run is not part of any: the policy sees differences between two.
    """
    spans, limit = samples["span_ns"].to_numpy(), interval_ms * 1_000_000
    number, passed, numbers = 0, 0, [-1]
    for span in spans[1:]:
        numbers.append(number)
        passed += span
        if passed >= limit:
            number, passed = number + 1, 0
    table = samples.with_columns(interval=pl.Series(numbers)).with_row_index("row")
    # The last one may be short.
    table = table.filter((pl.col("interval") >= 0) & (pl.col("interval") < number))
    sums = [pl.col(name).sum() for name in ("instructions", "guest_cycles", "host_cycles", "misses", "faults")]
    table = table.group_by("interval", maintain_order=True).agg(
        *sums,
        # The engine that it ended with; a sample in which it changed counts as one of the new engine.
        pl.col("engine").last(),
        # By the guest itself, in all of it.
        counted=pl.col("counted").all(),
        # In part of it nothing was counted: policies leave such an interval out.
        blind=pl.col("blind").any(),
        # In force for all of it: a VCPU in another state may have kept it from being so.
        pure=pl.col("engine").n_unique() == 1,
        begin_ns=pl.col("time_ns").first() - pl.col("span_ns").first(),
        end_ns=pl.col("time_ns").last(),
        first=pl.col("row").min(),
        last=pl.col("row").max() + 1,
    )
    return table, list(zip(table["first"], table["last"]))


def contexts(log, table, periods, usable, interval_ms, least):
    """Pairs each interval with what was known at its start."""
    engine = table["engine"].to_numpy()
    instructions = [int(value) for value in table["instructions"]]
    counts, rate = [], None
    known = ((engine == SHADOW) | table["counted"].to_numpy()) & ~table["blind"].to_numpy()
    for number, (faults, misses) in enumerate(zip(table["faults"], table["misses"])):
        if known[number] and instructions[number] > 0:
            rate = faults * 1_000_000 // instructions[number]
        elif not known[number] and rate is not None:
            faults = known_faults(rate, instructions[number])
        # Until the guest counts them or shadow paging is first used nothing is known of its page faults.
        counts.append((faults if rate is not None else -1, misses))
    counts = np.array(counts, dtype=np.int64).reshape(-1, 2)
    after = np.arange(1, len(table))
    after = after[usable[after] & usable[after - 1] & (counts[after - 1, 0] >= 0)] if len(after) else after
    if len(after) < least:
        which = " of its work" if log.knows_work else ""
        raise Refusal(f"{log.path}: {len(after)} intervals of {interval_ms} ms{which} can be used, and {least} are needed at least: run it for "
                      "longer, or with shorter intervals (`--policy random,interval_ms=N --sample-ms N`)")
    cycles = (table["guest_cycles"] + table["host_cycles"]).to_numpy()
    speed = table["instructions"].to_numpy()[after] / np.maximum(cycles[after], 1)
    ends = phases.of_speed(speed)
    phase = np.searchsorted(ends, np.arange(len(after)), side="right")
    means = np.array([speed[phase == number].mean() for number in range(len(ends))])
    return Intervals(
        counts=counts[after - 1],
        before=engine[after - 1],
        engine=engine[after],
        speed=speed,
        phase=phase,
        reward=np.log(speed / means[phase]),
        position=after,
        periods=periods,
        left_out=len(table) - len(after),
        interval_ms=interval_ms,
    )
