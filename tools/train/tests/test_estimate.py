"""Estimates of what policies gain, against guests for which the truth is known."""

import os
import unittest

import numpy as np

from palimpsest_train import NESTED, SHADOW, Refusal, actual, estimate, intervals, replay
from palimpsest_train.model import Model
from tests import synthetic

REPLAY = os.environ.get("POLICY_REPLAY", "")
SEEDS = 200


class Guest:
    """Work with phases, whose reward has a part for each engine, a cost of changes, and noise."""

    def __init__(self, seed, count):
        rng = np.random.default_rng(seed)
        level = np.repeat(rng.normal(size=(count // 10 + 1, 2)), 10, axis=0)[:count]
        self.contexts = 8 + 2 * level + 0.5 * rng.normal(size=(count, 2))
        self.noise = 0.05 * rng.normal(size=count)

    def reward(self, before, engine):
        """Of these choices."""
        # Not linear, so that the regression of the doubly robust estimate is wrong somewhere.
        side = np.tanh((self.contexts[:, 1] - self.contexts[:, 0]) / 2)
        return 0.2 * side * np.where(engine == SHADOW, 1, -1) - 0.03 * (engine != before) + self.noise

    def logged(self, seed):
        """As a log of random choices."""
        count = len(self.noise)
        drawn = intervals.draws(seed, count + 1)
        before, engine = drawn[:-1], drawn[1:]
        zeros = np.zeros(count, dtype=int)
        data = intervals.Intervals(zeros, before, engine, zeros, zeros, self.reward(before, engine), zeros, [], 0, 10)
        return type("Data", (), {**vars(data), "contexts": self.contexts, "__len__": lambda _: count})()

    def choices(self):
        """Of a policy that stays within a margin: what it does depends on its own last choice."""
        found, engine = [], NESTED
        for sum_ in self.contexts[:, 1] - self.contexts[:, 0]:
            engine = SHADOW if sum_ > 1 else NESTED if sum_ < -1 else engine
            found.append(engine)
        found = np.array(found)
        return estimate.Choices(np.concatenate([[NESTED], found[:-1]]), found)


class Estimates(unittest.TestCase):
    """Confidence intervals hold the truth as often as they say."""

    def test_coverage(self):
        long = Guest(10_000, 200_000)
        always = [np.full(200_000, engine) for engine in (NESTED, SHADOW)]
        own = long.choices()
        value = long.reward(own.before, own.engine).mean()
        truth = {"nested": value - long.reward(always[0], always[0]).mean(), "shadow": value - long.reward(always[1], always[1]).mean()}
        # Either engine with the same chance, and a change every second time.
        chance = np.mean([long.reward(before, engine).mean() for before in always for engine in always])
        truth["the log"] = value - chance
        inside = {(name, kind): 0 for name in truth for kind in ("ips", "dr")}
        widths = {"ips": [], "dr": []}
        for seed in range(SEEDS):
            guest = Guest(seed, 400)
            for name, found in estimate.gains(guest.logged(seed), guest.choices()).items():
                for kind in ("ips", "dr"):
                    one = getattr(found, kind)
                    inside[name, kind] += one.low <= truth[name] <= one.high
                    widths[kind].append(one.high - one.low)
        for which, count in inside.items():
            # Of 95 % in 200 seeds, 180 to 198 are three standard deviations.
            self.assertTrue(0.90 <= count / SEEDS <= 0.99, f"{which}: the truth is inside {count} of {SEEDS} times")
        self.assertLess(np.mean(widths["dr"]), np.mean(widths["ips"]), "what the regression is for")

    def test_a_policy_that_is_the_log_gains_nothing_over_it(self):
        data = Guest(1, 400).logged(1)
        found = estimate.gains(data, estimate.Choices(data.before, data.engine))["the log"]
        # All match with a weight of 4, of which the mean is the log's four times; that is not the case for any policy.
        self.assertAlmostEqual(found.ips.mean, 3 * data.reward.mean())

    def test_a_static_engine_gains_nothing_over_itself(self):
        data = Guest(1, 400).logged(1)
        for engine, name in ((NESTED, "nested"), (SHADOW, "shadow")):
            found = estimate.gains(data, estimate.Choices.static(engine, 400))[name]
            for one in (found.ips, found.dr):
                self.assertEqual((one.mean, one.low, one.high), (0, 0, 0))

    def test_neighbours_widen_the_interval(self):
        rng = np.random.default_rng(1)
        alone = rng.normal(size=1000)
        alike = np.repeat(rng.normal(size=250), 4)
        widths = [(one.high - one.low) / np.std(terms) for terms in (alone, alike) for one in [estimate.Difference.of(terms)]]
        self.assertGreater(widths[1], 1.5 * widths[0])


class Actual(unittest.TestCase):
    """Runs of the same work, beside the estimates."""

    def test_what_was_gained(self):
        work = synthetic.phases(np.random.default_rng(5), 12)
        source = synthetic.parsed(synthetic.random_text(work))
        data = intervals.of(source)
        logs = [synthetic.parsed(synthetic.text(work, [engine] * len(work), name)) for engine, name in ((NESTED, "nested"), (SHADOW, "shadow"))]
        runs = {run.mode: actual.speeds(run, source, data) for run in logs}
        truth = np.mean([np.log(synthetic.cycles(SHADOW, *map(int, work[at])) / synthetic.cycles(NESTED, *map(int, work[at]))) for at in data.position])
        self.assertAlmostEqual(float(np.mean(runs["nested"] - runs["shadow"])), truth, 6)
        gained = estimate.gains(data, estimate.Choices.static(NESTED, len(data)))
        found = actual.compared(runs["nested"], np.log(data.speed), runs, gained)
        self.assertEqual(found[1:], ["+0.0 %, in both", f"{np.expm1(truth) * 100:+.1f} %, in both"])
        nonsense = actual.compared(runs["nested"] + 3, np.log(data.speed), {}, gained)
        self.assertEqual(nonsense[1:], ["–", "–"])
        self.assertIn("in neither", nonsense[0])

    def test_other_work_is_refused(self):
        source = synthetic.parsed(synthetic.random_text([(1, 1)] * 60))
        data = intervals.of(source)
        for other in (synthetic.text([(1, 1)] * 80, [NESTED] * 80, "nested"), synthetic.text([(1, 1)] * 60, [NESTED] * 60, "nested", command="sleep")):
            with self.assertRaisesRegex(Refusal, "with the same command"):
                actual.speeds(synthetic.parsed(other), source, data)


class Replayed(unittest.TestCase):
    """The hypervisor's own policies on logs."""

    def setUp(self):
        self.assertTrue(REPLAY, "POLICY_REPLAY names no program: `cargo pal test train` sets it")

    def test_whole_way(self):
        """From a file to an estimate, beside what the policy really takes on the same work."""
        rng = np.random.default_rng(6)
        work = synthetic.phases(rng, 20)
        log = synthetic.parsed(synthetic.random_text(work, seed=9, noise=0.03))
        data = intervals.of(log)
        model = Model("dsp-offset", -1.0, 1.0, -4.0, 0.25, 10)
        for policy in (model.words(), "threshold,faults=1000,misses=2000,interval_ms=10"):
            choices = replay.choices(REPLAY, policy, log, data)
            self.assertGreater(np.mean(choices.engine == SHADOW), 0.02)
            self.assertGreater(np.mean(choices.engine == NESTED), 0.02)

            def took(engines):
                return np.array([np.log(synthetic.cycles(e, *map(int, work[at]))) for e, at in zip(engines, data.position)])

            gained = estimate.gains(data, choices)
            for name, engine in (("nested", NESTED), ("shadow", SHADOW)):
                truth = np.mean(took([engine] * len(data)) - took(choices.engine))
                for one in (gained[name].ips, gained[name].dr):
                    self.assertTrue(one.low <= truth <= one.high, f"{policy} over {name}: {truth}, not {one.mean} [{one.low}, {one.high}]")

    def test_choices_follow_the_model(self):
        work = [(0, 20_000)] * 60 + [(5000, 0)] * 60
        log = synthetic.parsed(synthetic.random_text(work))
        data = intervals.of(log)
        choices = replay.choices(REPLAY, "dsp-offset,faults=-65536,misses=65536,interval_ms=10", log, data)
        at = dict(zip(data.position, choices.engine))
        # It decides after an interval for the next one, and sees page faults since it runs on shadow tables.
        self.assertEqual([at[n] for n in (50, 60, 61, 100)], [SHADOW, SHADOW, NESTED, NESTED])

    def test_page_faults_that_the_guest_counts(self):
        work = [(5000, 20_000)] * 60 + [(0, 20_000)] * 60
        for counts, wanted in ((False, NESTED), (True, SHADOW)):
            log = synthetic.parsed(synthetic.random_text(work, counts=counts))
            data = intervals.of(log)
            choices = replay.choices(REPLAY, "threshold,faults=1000,misses=2000,interval_ms=10", log, data)
            at = dict(zip(data.position, choices.engine))
            # Without counts it stays with nested paging, where it sees no page faults any more.
            self.assertEqual([at[50], at[100]], [NESTED, wanted])

    def test_no_policy(self):
        with self.assertRaisesRegex(replay.Refusal, "interval_ms is a number"):
            replay.periods(REPLAY, "threshold,interval_ms=0", synthetic.parsed(synthetic.random_text([(1, 1)] * 50)))
