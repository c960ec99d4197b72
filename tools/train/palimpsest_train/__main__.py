"""The command line behind `cargo pal train` and `cargo pal evaluate`, which check what a person types before."""

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from . import Refusal, actual, asp, enumerated, estimate, intervals, log, offset, oracle, replay

USAGE = 2
"""The exit status for what a person gave that is of no use."""


def main(words):
    """Performs a command; the exit status."""
    parser = argparse.ArgumentParser(prog="palimpsest_train")
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("policy", choices=["dsp-offset", "asp-svm", "oracle"])
    train.add_argument("logs", nargs="+", type=Path)
    train.add_argument("--output", required=True, type=Path)
    train.add_argument("--specific", action="store_true")
    train.add_argument("--interval-ms", type=int, default=asp.INTERVAL_MS)
    train.add_argument("--change-cycles", type=int, default=oracle.CHANGE_CYCLES)
    train.add_argument("--enumerate", type=Path)
    train.add_argument("--begin-ms", type=int, action="append", default=[])
    train.add_argument("--end-ms", type=int, action="append", default=[])
    judge = commands.add_parser("evaluate")
    judge.add_argument("--log", required=True, type=Path)
    judge.add_argument("--replay", required=True)
    judge.add_argument("--policy", action="append", required=True, nargs=2, metavar=("NAME", "WORDS"))
    judge.add_argument("--run", action="append", default=[], type=Path)
    arguments = parser.parse_args(words)
    try:
        (perform_train if arguments.command == "train" else perform_evaluate)(arguments)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return USAGE
    return 0


def perform_train(arguments):
    """Trains one model, or one for each workload, writes them, and prints what was learnt."""
    logs = [log.read(path) for path in arguments.logs]
    for each in logs:
        if each.damaged:
            print(f"{each.path}: {each.damaged} lines were left out: damaged, or without counters")
    # Runs of one workload are enumerated, and its phases are those of one log: the times of the first are enough.
    told = max(len(arguments.begin_ms), len(arguments.end_ms)) if arguments.enumerate else len(logs)
    log.tell_work(logs[:told], arguments.begin_ms, arguments.end_ms)
    if arguments.enumerate:
        return perform_plan(logs, arguments)
    for group, output in groups(logs, arguments):
        if arguments.policy == "dsp-offset":
            trained = offset.train(group)
            remarks = offset.remarks(trained)
        elif arguments.policy == "oracle":
            trained = oracle.train(group, arguments.change_cycles)
            remarks = oracle.remarks(trained)
        else:
            trained = asp.train(group, arguments.interval_ms)
            remarks = asp.remarks(trained)
        print("\n".join(remarks))
        write(output, trained.model.toml([f"Trained by `cargo pal train {arguments.policy}`.", *remarks]))
        key = "schedule" if arguments.policy == "oracle" else "model"
        print(f"wrote {output}: cargo pal run --policy {arguments.policy},{key}={output}")
        print(f"for a description or the monitor: mode {trained.model.words()}")


def perform_plan(logs, arguments):
    """Writes the schedules of the runs that enumerate the choices of one workload, and prints what is to be run."""
    schedules = enumerated.plan(logs, arguments.interval_ms)
    place = arguments.enumerate
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Those of other phases would be run as well.
        for old in place.glob("phase-[0-9][0-9]-*.toml"):
            old.unlink()
    except OSError as error:
        raise Refusal(f"--enumerate {place}: {error.strerror}; choose another place") from error
    print(f"{len(schedules)} runs, one for each engine in each phase alone, of {logs[0].workload}")
    for name, schedule in schedules.items():
        path = place / f"{name}.toml"
        write(path, schedule.toml(["One of the runs that `cargo pal train asp-svm` learns from."]))
        print(f"wrote {path}: cargo pal run --policy oracle,schedule={path} --samples {place / name}.jsonl")


def groups(logs, arguments):
    """The logs that are trained from together, with the file of each model."""
    if not arguments.specific:
        return [(logs, arguments.output)]
    if arguments.policy == "dsp-offset":
        parts = [[each] for each in logs]
    else:
        parts = list({each.workload: [other for other in logs if other.workload == each.workload] for each in logs}.values())
    names = [part[0].path.stem for part in parts]
    if len(set(names)) < len(names):
        raise Refusal("--specific names each model after its log, and two logs have the same name: rename one")
    output = arguments.output
    return [(part, output.with_name(f"{output.stem}-{name}{output.suffix}")) for part, name in zip(parts, names)]


def write(path, text):
    """Writes a model; the file is whole or not there."""
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise Refusal(f"--output {path}: {error.strerror}; choose another place") from error


def perform_evaluate(arguments):
    """Prints what policies would have gained."""
    source = log.read(arguments.log)
    data = intervals.of(source)
    runs = {run.mode: actual.speeds(run, source, data) for run in map(log.read, arguments.run)}
    for mode in runs.keys() - {words for _, words in arguments.policy} - {"nested", "shadow"}:
        raise Refusal(f"--run: none of the policies is {mode}, which ran there; add it with --policy")
    print(f"{source.path}: {len(data)} intervals of {data.interval_ms} ms, {data.left_out} left out; {source.workload}")
    print("instructions per cycle, 95 % confidence: inverse propensity (IPS), doubly robust (DR)")
    print(f"{'':<24} {'over the log':<30} {'over nested':<30} {'over shadow':<30}")
    for name, words in arguments.policy:
        choices = chosen(words, arguments, source, data)
        gained = estimate.gains(data, choices)
        matched = ((choices.before == data.before) & (choices.engine == data.engine)).sum()
        print(f"{name}: {(choices.engine == 1).mean():.0%} shadow, {(choices.engine != choices.before).sum()} changes, "
              f"{matched} intervals match the log")
        for label, which in (("IPS", "ips"), ("DR", "dr")):
            print(f"  {label:<22} " + " ".join(f"{getattr(each, which)!s:<30}" for each in gained.values()).rstrip())
        if words in runs:
            found = actual.compared(runs[words], np.log(data.speed), runs, gained)
            print(f"  {'its own run':<22} " + " ".join(f"{each:<30}" for each in found).rstrip())


def chosen(words, arguments, source, data):
    """The choices of a policy for the intervals of the log."""
    if words in ("nested", "shadow"):
        return estimate.Choices.static(("nested", "shadow").index(words), len(data))
    return replay.choices(arguments.replay, words, source, data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
