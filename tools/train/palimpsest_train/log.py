"""Files of samples (`cargo pal run --samples FILE`; docs/telemetry.md): what ran, and the samples of one VM as a table.

A file may come from a run that was killed, or be something else. Lines that cannot be read are left out and counted; a file
from which nothing can be learnt is refused with what to do.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from . import ENGINES, SHADOW, Refusal

VERSION = 1
"""The version of the schema of samples that is understood."""
LONGEST_LINE = 1 << 20
NANOS_PER_MS = 1_000_000
LAST_NS = 1 << 62
"""Beyond all times of a file."""
MOST = 1 << 48
"""A counter that grew by more than this between two samples ran backwards: the hypervisor leaves such a period out, too."""
COLUMNS = {
    "time_ns": pl.Int64,
    "span_ns": pl.Int64,
    "engine": pl.Int8,
    "instructions": pl.Int64,
    "guest_cycles": pl.Int64,
    "host_cycles": pl.Int64,
    "misses": pl.Int64,
    "faults": pl.Int64,
    "counted": pl.Boolean,
    "blind": pl.Boolean,
}
"""`counted`: the guest counted its page faults itself, so that they are known with either engine. `blind`: only instructions were
counted, as before a lab machine's model begins: policies saw nothing then, and an instruction stands for a cycle here."""


@dataclass
class Log:
    """A file of samples."""

    path: Path
    run: dict
    """Its first line."""
    samples: pl.DataFrame
    """With the columns of `COLUMNS`, in the order of time."""
    damaged: int
    """Lines that could not be used."""
    dropped: int
    """Samples that the run lost, if its last line is there to say so."""
    begin_ns: int = 0
    end_ns: int = LAST_NS
    """Between which times of the VM the work lies. Nothing is learnt from what is before and behind it: all guests boot alike."""

    @property
    def knows_work(self):
        """Whether the times of the work are known."""
        return (self.begin_ns, self.end_ns) != (0, LAST_NS)

    @property
    def mode(self):
        """The policy that ran, as `--policy` takes it; `None` where each VM had its own."""
        return self.run.get("mode")

    @property
    def workload(self):
        """What ran: runs of the same command on the same machine can be compared."""
        words = [str(word) for word in self.run.get("command") or []]
        executed = [after for word, after in zip(words, words[1:]) if word == "--exec"]
        executed += [word.removeprefix("--exec=") for word in words if word.startswith("--exec=")]
        # A program that is the guest's first process has its arguments behind two dashes, as those of `pal workload` have.
        appended = [after for word, after in zip(words, words[1:]) if word == "--append" and " -- " in after]
        executed = executed or [after.split(" -- ", 1)[1] for after in appended]
        return f"{executed[-1] if executed else 'a console'} on {self.run.get('lab') or self.run.get('machine')}"

    @property
    def parameters(self):
        """The policy's name, and its parameters as texts."""
        name, *rest = (self.mode or "").split(",")
        return name, dict(word.split("=", 1) for word in rest if "=" in word)


def read(path):
    """Reads a file.

    Raises `Refusal` where it is something else, holds no samples, or those of several VMs.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return parse(path, file)
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror or error}") from error


def tell_work(logs, begin_ms, end_ms):
    """Tells logs when their work began and ended: times for each log in their order, or none.

    Raises `Refusal` where the times are not as many as the logs, or an end is not after its begin.
    """
    for option, times in (("--begin-ms", begin_ms), ("--end-ms", end_ms)):
        if times and len(times) != len(logs):
            raise Refusal(f"{option} has {len(times)} times for {len(logs)} logs: give one for each log, in their order")
    for number, log in enumerate(logs):
        if begin_ms:
            log.begin_ns = begin_ms[number] * NANOS_PER_MS
        if end_ms:
            log.end_ns = min(end_ms[number] * NANOS_PER_MS, LAST_NS)
        if log.begin_ns >= log.end_ns:
            raise Refusal(f"{log.path}: its work begins at {log.begin_ns // NANOS_PER_MS} ms and ends at {log.end_ns // NANOS_PER_MS} "
                          "ms: --end-ms is a time of the VM after --begin-ms")


def parse(path, file):
    """Reads lines of samples from a binary file."""
    run, rows, vms, damaged, dropped, resets = None, [], set(), 0, 0, 0
    while line := file.readline(LONGEST_LINE):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            kind, version = record["t"], record["v"]
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged += 1
            continue
        if not isinstance(version, int) or version > VERSION:
            raise Refusal(f"{path}: its schema is version {version!r}, and version {VERSION} is known here: "
                          "take the checkout that wrote it")
        if kind == "run" and run is None:
            run = record
        elif kind == "sample":
            row = sample(record)
            if row is None:
                damaged += 1
                continue
            resets += bool(rows and row[0] < rows[-1][0])
            vms.add(record.get("vm"))
            rows.append(row)
        elif kind == "end":
            dropped = record.get("dropped", 0)
    if run is None:
        raise Refusal(f"{path}: not a file of samples: `cargo pal run --samples FILE` writes one")
    if all(row[-1] for row in rows):
        raise Refusal(f"{path}: no sample in it has counters of instructions, cycles and misses of the TLB: run it on a lab "
                      "machine (`cargo pal run --lab NAME`), and for longer than some periods of samples")
    if len(vms) > 1:
        names = ", ".join(sorted(str(name) for name in vms))
        raise Refusal(f"{path}: samples of several VMs ({names}): make a log with one VM in it")
    if resets:
        raise Refusal(f"{path}: the VM was restarted while it ran: make a log of one start")
    return Log(path, run, pl.DataFrame(rows, schema=COLUMNS, orient="row"), damaged, dropped)


def sample(record):
    """A sample as a row; `None` where it is damaged or lacks a counter that policies compare.

    What counts is what the hypervisor's policies see (`hv/src/paging/policy/window.rs`): walks stand in for misses where only
    those are counted, and a period in which a counter ran backwards is none.
    """
    try:
        guest, host = record["guest"], record["host"]
        blind = guest.keys().isdisjoint(("cycles", "dtlb_misses", "walks"))
        if blind:
            guest, host = {**guest, "cycles": guest["instructions"], "dtlb_misses": 0}, {}
        misses = guest["dtlb_misses"] if "dtlb_misses" in guest else guest["walks"]
        engine = ENGINES.index(record["engine"])
        counted = "page_faults" in guest
        faults = guest["page_faults"] if counted else record["faults"]["guest"] if engine == SHADOW else 0
        row = [record["time_ns"], record["span_ns"], engine, guest["instructions"], guest["cycles"], host.get("cycles", 0),
               misses, faults, counted, blind]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    if not all(isinstance(value, int) and 0 <= value <= MOST for value in row[1:]) or not isinstance(row[0], int):
        return None
    return row if 0 <= row[0] < LAST_NS else None
