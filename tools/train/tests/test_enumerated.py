"""Enumerated runs of a guest whose costs are known: the schedules of a work's phases, and what is learnt from their runs."""

import contextlib
import io
import tempfile
import tomllib
import unittest
from pathlib import Path

import numpy as np

from palimpsest_train import ENGINES, NESTED, SHADOW, Refusal, __main__, asp, enumerated, log
from tests import synthetic

PAGING, MISSES = (300, 100), (1, 20_000)
WORK = [PAGING] * 50 + [MISSES] * 50 + [PAGING] * 50
"""A boot, and two phases of a work that begins at 500 ms."""
TIMES = (500, 1500)


def static(work=WORK, command="sh /work"):
    return [synthetic.parsed(synthetic.text(work, [engine] * len(work), ENGINES[engine], command=command)) for engine in (NESTED, SHADOW)]


def known(logs, times=TIMES):
    """The logs, which know when the work began and ended."""
    log.tell_work(logs, *([each] * len(logs) for each in times))
    return logs


def runs(work=WORK, times=TIMES, change=0, command="sh /work"):
    """The runs of both engines, and those that are planned from them. `change`: cycles of each change of the engine."""
    logs = static(work, command)
    for schedule in enumerated.plan(known(logs, times) if times else logs, 10).values():
        begin, end = (round(place * enumerated.UNIT / synthetic.INSTRUCTIONS) for place in schedule.changes)
        engines = [1 - schedule.first if begin <= number < end else schedule.first for number in range(len(work))]
        logs.append(synthetic.parsed(synthetic.text(work, engines, schedule.words(), change=change, command=command)))
    return logs


class Plan(unittest.TestCase):
    """What is to be run."""

    def test_each_phase_of_the_work_alone(self):
        found = enumerated.plan(known(static()), 10)
        self.assertEqual(list(found), ["phase-01-shadow", "phase-01-nested", "phase-02-shadow", "phase-02-nested"])
        self.assertEqual([(each.first, each.changes) for each in found.values()],
                         [(base, places) for places in ([50_000, 100_000], [100_000, 150_000]) for base in (NESTED, SHADOW)])
        # Without times the boot is a phase, too.
        self.assertEqual(len(enumerated.plan(static(), 10)), 6)

    def test_what_cannot_be_compared(self):
        nested, shadow = static()
        with self.assertRaisesRegex(Refusal, "no log is of shadow paging"):
            enumerated.plan([nested], 10)
        with self.assertRaisesRegex(Refusal, "different work"):
            enumerated.plan([nested, shadow, *static(command="other")], 10)
        with self.assertRaisesRegex(Refusal, "no samples in that time"):
            enumerated.plan(known([nested, shadow], (99_000, 99_999)), 10)
        with self.assertRaisesRegex(Refusal, "none of nested paging alone"):
            asp.train([each for each in runs() if each.mode != "nested"], 10)

    def test_files(self):
        with tempfile.TemporaryDirectory() as place:
            logs = []
            for name, engine in zip(("nested", "shadow"), (NESTED, SHADOW)):
                logs.append(Path(place, f"{name}.jsonl"))
                logs[-1].write_text(synthetic.text(WORK, [engine] * len(WORK), name))
            folder = Path(place, "runs")
            words = ["train", "asp-svm", "--output", f"{place}/model.toml", "--enumerate", str(folder), "--interval-ms", "10",
                     "--begin-ms", "500", "--end-ms", "1500", *map(str, logs)]  # fmt: skip
            for _ in range(2):
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    self.assertEqual(__main__.main(words), 0)
            self.assertIn("4 runs", said.getvalue())
            self.assertEqual(len(list(folder.iterdir())), 4)
            found = tomllib.loads((folder / "phase-02-nested.toml").read_text())
            self.assertEqual(found, {"version": 1, "policy": "oracle", "first": "shadow", "changes": [100_000, 150_000]})


class Labels(unittest.TestCase):
    """What is learnt."""

    def test_gains_of_a_change_for_a_phase(self):
        misses, paging = np.log((1e6 + 2_400_000) / (1e6 + 603_000)), np.log((1e6 + 12_000) / (1e6 + 903_000))
        found = asp.train(runs(), 10).phases
        self.assertEqual([phase.base for phase in found], [NESTED, SHADOW] * 2)
        for phase, gain in zip(found, [misses, misses, paging, paging]):
            self.assertAlmostEqual(phase.gain, gain, 6)
        self.assertTrue(np.allclose(found[0].contexts, np.log2([2, 20_001])))

    def test_what_changes_cost_is_part_of_it(self):
        # Two changes cost more than either engine gains.
        found = asp.train(runs(change=100_000_000), 10).phases
        signs = [np.sign(phase.gain) for phase in found]
        # On nested tables a change to shadow paging does not pay, on shadow tables one to nested paging does not.
        self.assertEqual(signs, [-1, 1, -1, 1])

    def test_recovers_what_is_better(self):
        rng = np.random.default_rng(1)
        work = synthetic.phases(rng, 12)
        model = asp.train(runs(work, None, change=20_000), 10).model
        wanted = model.wanted(np.log2(1.0 + np.array(work)))
        right = [want == synthetic.better(*counts) for want, counts in zip(wanted, work)]
        self.assertGreater(np.mean(right), 0.97)


if __name__ == "__main__":
    unittest.main()
