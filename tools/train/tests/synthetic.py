"""Logs of a guest of which it is known what each engine costs it: as files of samples, and as the trainer's arrays."""

import io
import json
from pathlib import Path

import numpy as np

from palimpsest_train import ENGINES, NESTED, SHADOW, intervals, log

INSTRUCTIONS = 1_000_000


def cycles(engine, faults, misses):
    """A page fault costs 3000 cycles on shadow tables; a miss 120 on nested ones and 30 on shadow tables."""
    return INSTRUCTIONS + (misses * 120 if engine == NESTED else misses * 30 + faults * 3000)


def text(work, engines, mode, noise=0.0, seed=0, command="sh /work", change=0, end=True, counts=False):
    """A file of samples, one for each interval of 10 ms; `work` has page faults and misses of each. `counts`: the guest counts its
    page faults itself."""
    rng = np.random.default_rng(seed)
    run = {"v": 1, "t": "run", "machine": "qemu-svm", "lab": "synthetic", "mode": mode, "command": ["pal", "run", "--exec", command]}
    lines, before = [run, sample(0, NESTED, 0, 0, 0, counts)], NESTED
    for number, ((faults, misses), engine) in enumerate(zip(work, engines)):
        taken = cycles(engine, int(faults), int(misses)) * np.exp(noise * rng.normal()) + change * (engine != before)
        lines.append(sample(number + 1, engine, int(faults), int(misses), int(taken), counts))
        before = engine
    if end:
        lines.append({"v": 1, "t": "end", "records": len(lines), "dropped": 0})
    return "".join(json.dumps(line) + "\n" for line in lines)


def sample(number, engine, faults, misses, taken, counts=False):
    """A line of 10 ms."""
    counted = {"page_faults": faults} if counts else {}
    return {
        "v": 1, "t": "sample", "vm": "guest", "time_ns": number * 10_000_000, "span_ns": 10_000_000, "engine": ENGINES[engine],
        "faults": {"shadow": faults, "guest": faults if engine == SHADOW else 0},
        "guest": {"instructions": INSTRUCTIONS if taken else 0, "cycles": taken, "dtlb_misses": misses, **counted}, "host": {"cycles": 0},
    }  # fmt: skip


def random_text(work, seed=1, **others):
    """A log of the policy `random` with intervals of one sample."""
    return text(work, intervals.draws(seed, len(work)), f"random,seed={seed},interval_ms=10", seed=seed, **others)


def parsed(written, name="synthetic.jsonl"):
    """A text as a log."""
    return log.parse(Path(name), io.BytesIO(written.encode()))


def phases(rng, count, length=40):
    """Work that alternates between paging, misses of the TLB and something between, in phases."""
    kinds = [(300, 100), (1, 20_000), (20, 500), (2, 3_000)]
    return [
        (rng.poisson(faults), rng.poisson(misses))
        for number in range(count)
        for faults, misses in [kinds[number % len(kinds)]]
        for _ in range(length)
    ]


def better(faults, misses):
    """The engine that takes fewer cycles."""
    return SHADOW if cycles(SHADOW, faults, misses) < cycles(NESTED, faults, misses) else NESTED
