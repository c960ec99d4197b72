"""What the hypervisor's own policies decide on a log: `tools/policy-replay` is their code, compiled for this machine.

A line goes in for each period of samples, and the engine that is wanted after it comes out. A policy in nested mode sees no page
faults, unless the guest counts them itself, so only what it could have seen is handed over: `policy-replay` hides them by the
policy's own engine.
"""

import subprocess

import numpy as np

from . import ENGINES, SHADOW, Refusal
from .estimate import Choices
from .intervals import known_faults

UNSUITABLE = {
    "dav2m": "it compares what its own probes of either engine bring",
    "dsp-sample": "it compares what its own probes of either engine bring",
    "bandit": "it learns from what its own changes bring",
    "switch": "it counts exits",
}
"""Policies whose decisions depend on what they did before in a way that a log of other choices does not show."""
KEEPS_INTERVALS = ("threshold", "dsp-offset", "asp-svm")
"""Policies that decide at the end of intervals of their own."""


def choices(program, policy, log, data):
    """What `policy` would have chosen for the intervals of `data`."""
    name = policy.split(",")[0].split("=")[0]
    if name in UNSUITABLE:
        raise Refusal(f"{policy} cannot be judged from a log: {UNSUITABLE[name]}; run it (`cargo pal run --policy {name}`)")
    if name == "random":
        raise Refusal("random is what the log holds: gains are over it; name another policy")
    parameters = dict(word.split("=", 1) for word in policy.split(",")[1:] if "=" in word)
    interval = int(parameters.get("interval_ms", 1000))
    if name in KEEPS_INTERVALS and (interval < data.interval_ms or interval % data.interval_ms):
        raise Refusal(f"{policy} decides every {interval} ms, and the log has intervals of {data.interval_ms} ms, of which that is no "
                      f"multiple: give it interval_ms={data.interval_ms}")
    engines = periods(program, policy, log)
    first = np.array([first for first, _ in data.periods])
    return Choices(engines[first[data.position - 1]], engines[first[data.position]])


def periods(program, policy, log):
    """The engine that the policy would have had in force in each sample of the log."""
    rows, rate = [], 0
    for row in log.samples[1:].iter_rows(named=True):
        faults, instructions, counted = row["faults"], row["instructions"], row["counted"]
        known = (counted or row["engine"] == SHADOW) and not row["blind"]
        if known and instructions > 0:
            rate = faults * 1_000_000 // instructions
        elif not known:
            faults = known_faults(rate, instructions)
        rows.append(f"{row['span_ns']} {instructions} {row['guest_cycles']} {row['host_cycles']} {row['misses']} {faults} "
                    f"{2 if row['blind'] else counted:d}")
    words = ask(program, ["replay", policy], rows)
    if len(words) != len(rows) + 1:
        raise RuntimeError(f"{program}: {len(words)} decisions for {len(rows)} periods")
    # The first sample has no period; what is decided after one is in force in the next.
    return np.array([ENGINES.index(word) for word in words[:1] + words[:-1]], dtype=np.int8)


def decisions(program, policy, counts):
    """What the integer model wants for pairs of counts: words `nested`, `shadow`, `stay`."""
    return ask(program, ["decide", policy], [f"{faults} {misses}" for faults, misses in counts])


def ask(program, arguments, lines):
    """Runs the program with these lines; the words that it prints."""
    done = subprocess.run([program, *arguments], input="".join(line + "\n" for line in lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(done.stderr.strip() or f"{program} failed with status {done.returncode}")
    return done.stdout.split()
