"""Schedules from runs of a guest whose costs are known, beside all schedules that there are in small cases."""

import itertools
import os
import tempfile
import tomllib
import unittest
from pathlib import Path

import numpy as np

from palimpsest_train import NESTED, SHADOW, Refusal, __main__, oracle, replay
from tests import synthetic

REPLAY = os.environ.get("POLICY_REPLAY", "")
PAGING, MISSES = (300, 100), (1, 20_000)
"""Nested paging is better for the first, shadow paging for the second."""


def text(work, engine, **others):
    """A run on one engine."""
    return synthetic.text(work, [engine] * len(work), ("nested", "shadow")[engine], **others)


def logs(work, **others):
    """A run on each engine."""
    return [synthetic.parsed(text(work, engine, **others)) for engine in (NESTED, SHADOW)]


class Programme(unittest.TestCase):
    """The dynamic programme."""

    def test_exact(self):
        rng = np.random.default_rng(1)
        for number in range(200):
            count, most, change = int(rng.integers(1, 9)), int(rng.integers(0, 5)), float(rng.uniform(0, 3))
            cycles = rng.uniform(0, 2, (count, 2))

            def total(engines):
                changes = sum(one != other for one, other in itertools.pairwise(engines))
                return sum(cycles[at, engine] for at, engine in enumerate(engines)) + (change * changes if changes <= most else np.inf)

            least = min(map(total, itertools.product((0, 1), repeat=count)))
            self.assertAlmostEqual(total(oracle.best(cycles, change, most).tolist()), least, msg=f"case {number}")


class Schedules(unittest.TestCase):
    """Schedules from logs."""

    def test_phases(self):
        # The first sample has no period: of 121 there are 120 left, of a million instructions each.
        work = [PAGING] + [PAGING] * 40 + [MISSES] * 50 + [PAGING] * 30
        trained = oracle.train(logs(work))
        self.assertEqual(trained.model.first, NESTED)
        self.assertEqual(len(trained.model.changes), 2)
        self.assertLessEqual(max(np.abs(np.array(trained.model.changes) - [40_000, 90_000])), 2_000)
        self.assertEqual(trained.model.words(), "oracle,changes=" + ":".join(map(str, trained.model.changes)))
        best = 70 * synthetic.cycles(NESTED, *PAGING) + 50 * synthetic.cycles(SHADOW, *MISSES) + 2 * trained.change_cycles
        said = oracle.remarks(trained)[-1]
        self.assertLess(abs(float(said.split()[1]) / best - 1), 0.02, said)

    def test_short_alternations_are_not_followed(self):
        work = [PAGING, MISSES] * 60
        self.assertGreater(len(oracle.train(logs(work), 1000).model.changes), 20)
        trained = oracle.train(logs(work), 5_000_000)
        self.assertEqual((trained.model.first, trained.model.changes), (SHADOW, []))
        self.assertEqual(trained.model.words(), "oracle,first=shadow")
        most = len(oracle.train(logs(work * 3), 0).model.changes)
        self.assertTrue(oracle.MOST_CHANGES - 1 <= most <= oracle.MOST_CHANGES, f"{most}, as many as there may be")

    def test_refusals(self):
        work = [PAGING] * 60
        nested, shadow = logs(work)
        with self.assertRaisesRegex(Refusal, "no log is of shadow paging"):
            oracle.train([nested, nested])
        with self.assertRaisesRegex(Refusal, "different work"):
            oracle.train([nested, synthetic.parsed(text(work, SHADOW, command="other"))])
        with self.assertRaisesRegex(Refusal, "runs of the same work"):
            oracle.train([nested, logs(work * 2)[1]])
        with self.assertRaisesRegex(Refusal, "made from runs of one engine"):
            oracle.train([nested, shadow, synthetic.parsed(synthetic.random_text(work))])

    def test_files(self):
        with tempfile.TemporaryDirectory() as place:
            names = []
            for engine, name in ((NESTED, "nested.jsonl"), (SHADOW, "shadow.jsonl")):
                names.append(f"{place}/{name}")
                Path(names[-1]).write_text(text([PAGING] * 40 + [MISSES] * 40, engine))
            output = Path(place, "schedule.toml")
            self.assertEqual(__main__.main(["train", "oracle", "--change-cycles=2000", "--output", str(output), *names]), 0)
            found = tomllib.loads(output.read_text())
            self.assertEqual((found["version"], found["policy"], found["first"], len(found["changes"])), (1, "oracle", "nested", 1))
            self.assertEqual(__main__.main(["train", "oracle", "--output", str(output), names[0]]), __main__.USAGE)

    def test_the_hypervisor_follows_it(self):
        self.assertTrue(REPLAY, "POLICY_REPLAY names no program: `cargo pal test train` sets it")
        trained = oracle.train(logs([PAGING] * 41 + [MISSES] * 40 + [PAGING] * 40))
        words = replay.ask(REPLAY, ["replay", trained.model.words()], ["10000000 1000000 1000000 0 5 5 0"] * 120)
        changes = [at for at, (one, other) in enumerate(itertools.pairwise(words), 1) if one != other]
        self.assertEqual(words[0], "nested")
        self.assertLessEqual(max(np.abs(np.array(changes) - [40, 80])), 2)


if __name__ == "__main__":
    unittest.main()
