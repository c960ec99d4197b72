"""Training on logs of a guest whose costs are known, and the model's decisions beside the hypervisor's own."""

import json
import os
import tempfile
import tomllib
import unittest
from pathlib import Path

import numpy as np

from palimpsest_train import NESTED, SHADOW, Refusal, __main__, asp, intervals, offset, replay, svm
from palimpsest_train.model import ONE, STAY, Model
from tests import synthetic

REPLAY = os.environ.get("POLICY_REPLAY", "")


def agreement(model, work):
    """The share of intervals in which the model wants the better engine, of those in which it is better by 5 % or more."""
    right = []
    for (faults, misses), wanted in zip(work, model.wanted(np.log2(1.0 + np.array(work)))):
        both = [synthetic.cycles(engine, faults, misses) for engine in (NESTED, SHADOW)]
        if max(both) > 1.05 * min(both):
            right.append(wanted == synthetic.better(faults, misses))
    return np.mean(right)


class Offset(unittest.TestCase):
    """DSP-OFFSET."""

    def test_recovers_what_is_better(self):
        rng = np.random.default_rng(1)
        trained = offset.train([synthetic.parsed(synthetic.random_text(synthetic.phases(rng, 24), noise=0.05, change=20_000))])
        self.assertGreater(agreement(trained.model, synthetic.phases(rng, 8)), 0.97)
        self.assertLess(trained.model.faults, 0)
        self.assertGreater(trained.model.misses, 0)
        self.assertGreater(trained.cross_validated.low, 0.1, "the gain over chance is far from none")

    def test_noise_teaches_nothing(self):
        # Both engines are alike: what is learnt gains nothing on what was not seen.
        low = 0
        for seed in range(4):
            rng = np.random.default_rng(seed)
            work = [(0, misses) for misses in rng.integers(0, 50, 300)]
            trained = offset.train([synthetic.parsed(synthetic.random_text(work, noise=0.1, seed=seed))])
            low += trained.cross_validated.low > 0
        self.assertLessEqual(low, 1)

    def test_binary_offset(self):
        rng = np.random.default_rng(3)
        data = intervals.of(synthetic.parsed(synthetic.random_text(synthetic.phases(rng, 8), noise=0.05)))
        labels, weights = offset.labelled(data)
        action = np.where(data.engine == SHADOW, 1, -1)
        found, wanted = labels * weights, action * data.reward
        capped = weights < np.abs(wanted)
        self.assertTrue(np.allclose(found[~capped], wanted[~capped]) and np.all(np.sign(found) == np.sign(wanted)))
        self.assertTrue(0 < capped.mean() <= 0.06 and np.ptp(weights[capped]) < 1e-12, "the largest twentieth weighs the same")
        for number in np.unique(data.phase):
            inside = data.phase == number
            self.assertAlmostEqual(np.mean(np.exp(data.reward[inside])), 1.0, msg="over the phase's mean")

    def test_tables_that_are_filled_once_do_not_outweigh_the_rest(self):
        # Shadow paging is better for these misses, but in its first interval the guest hardly runs.
        work = [(1, 20_000)] * 60
        engines = intervals.draws(1, len(work))
        lines = synthetic.random_text(work, noise=0.02, counts=True).splitlines()
        first = 2 + 1 + int(np.flatnonzero(engines[1:] == SHADOW)[0]) + 1
        line = json.loads(lines[first])
        self.assertEqual(line["engine"], "shadow")
        line["guest"]["instructions"] //= 20_000
        lines[first] = json.dumps(line)
        trained = offset.train([synthetic.parsed("\n".join(lines) + "\n")])
        self.assertEqual(list(trained.model.wanted(np.log2([[2.0, 20_001.0]]))), [SHADOW])
        data = trained.logs[0][1]
        rewards = np.sort(np.abs(data.reward))
        self.assertGreater(rewards[-1], 5 * rewards[-5], "it is an outlier")
        self.assertLess(offset.labelled(data)[1].max(), 1.5 * rewards[-5])

    def test_files(self):
        rng = np.random.default_rng(4)
        with tempfile.TemporaryDirectory() as place:
            logs = [Path(place, name) for name in ("one.jsonl", "two.jsonl")]
            for path in logs:
                path.write_text(synthetic.random_text(synthetic.phases(rng, 8), noise=0.05))
            names = [str(path) for path in logs]
            output = Path(place, "model.toml")
            self.assertEqual(__main__.main(["train", "dsp-offset", "--output", str(output), *names]), 0)
            self.assertEqual(__main__.main(["train", "dsp-offset", "--specific", "--output", str(output), *names]), 0)
            for name in ("model.toml", "model-one.toml", "model-two.toml"):
                found = tomllib.loads(Path(place, name).read_text())
                self.assertEqual((found.pop("version"), found.pop("policy")), (1, "dsp-offset"))
                self.assertTrue(all(isinstance(value, int) for value in found.values()), found)
                self.assertEqual((found["margin"], found["interval_ms"]), (ONE // 4, 10))
            # What was learnt from half of each log is another model.
            whole = output.read_text()
            times = ["--begin-ms", "0", "--begin-ms", "1600", "--end-ms", "1600", "--end-ms", "9999"]
            self.assertEqual(__main__.main(["train", "dsp-offset", *times, "--output", str(output), *names]), 0)
            self.assertNotEqual(output.read_text(), whole)
            self.assertEqual(__main__.main(["train", "dsp-offset", *times[2:], "--output", str(output), *names]), __main__.USAGE)
            self.assertEqual(__main__.main(["train", "dsp-offset", "--output", f"{place}/no/model.toml", *names]), __main__.USAGE)
            self.assertEqual(__main__.main(["train", "dsp-offset", "--output", str(output), f"{place}/none"]), __main__.USAGE)


class Asp(unittest.TestCase):
    """ASP-SVM."""

    def logs(self, seed, command):
        rng = np.random.default_rng(seed)
        work = synthetic.phases(rng, 12)
        engines = {"nested": [NESTED] * len(work), "shadow": [SHADOW] * len(work)}
        return [synthetic.parsed(synthetic.text(work, engine, mode, 0.02, seed, command)) for mode, engine in engines.items()]

    def test_recovers_what_is_better(self):
        trained = asp.train(self.logs(1, "a") + self.logs(2, "b"), 10)
        self.assertGreater(len(trained.phases), 10)
        self.assertGreater(agreement(trained.model, synthetic.phases(np.random.default_rng(3), 8)), 0.97)
        self.assertGreater(trained.cross_validated, 0.1)

    def test_labels_are_gains(self):
        work = [(300, 100)] * 50 + [(1, 20_000)] * 50
        logs = [synthetic.parsed(synthetic.text(work, [engine] * 100, mode)) for mode, engine in (("nested", 0), ("shadow", 1))]
        first, second = asp.train(logs, 10).phases
        self.assertAlmostEqual(first.gain, np.log((1e6 + 12_000) / (1e6 + 903_000)), 6)
        self.assertAlmostEqual(second.gain, np.log((1e6 + 2_400_000) / (1e6 + 603_000)), 6)
        self.assertTrue(np.allclose(first.contexts, np.log2([301, 101])))


class Integers(unittest.TestCase):
    """The hypervisor's integer model beside the trainer's floating point."""

    def test_ten_thousand_decisions(self):
        self.assertTrue(REPLAY, "POLICY_REPLAY names no program: `cargo pal test train` sets it")
        rng = np.random.default_rng(5)
        compared = differed = 0
        kinds = set()
        for number in range(20):
            weights = rng.normal(size=2) * 10.0 ** rng.uniform(-2, 1.5)
            policy = ("dsp-offset", "asp-svm")[number % 2]
            bias = -weights @ rng.uniform(0, 25, 2)
            model = Model(policy, *weights, bias, 0.25 if policy == "dsp-offset" else 0.0, 10)
            counts = np.floor(2.0 ** rng.uniform(0, 40, (500, 2))).astype(np.int64) - 1
            words = replay.decisions(REPLAY, model.words(), counts.tolist())
            wanted = model.wanted(np.log2(1.0 + counts))
            # Weights and bias are rounded to the nearest 65536th, logarithms down to one, and so is the sum.
            error = (np.abs(weights).sum() + 0.5 * np.log2(1.0 + counts).sum(axis=1) + 2) / ONE
            sums = model.sums(np.log2(1.0 + counts))
            near = np.abs(np.abs(sums) - model.margin) <= error
            for word, mine, close in zip(words, wanted, near):
                compared, theirs = compared + 1, {"nested": NESTED, "shadow": SHADOW, "stay": STAY}[word]
                kinds.add(word)
                differed += bool(theirs != mine and close)
                self.assertTrue(theirs == mine or close, f"{model}: {word}")
        self.assertEqual((compared, kinds), (10_000, {"nested", "shadow", "stay"}))
        self.assertLess(differed, 10, "differences are rare even where rounding may decide")

    def test_limits(self):
        with self.assertRaisesRegex(Refusal, "too little"):
            Model("dsp-offset", 1e9, 0, 0, 0.25, 10).integers()
        with self.assertRaisesRegex(Refusal, "misses is nan"):
            Model("dsp-offset", 0, float("nan"), 0, 0.25, 10).integers()


class Svm(unittest.TestCase):
    """The support vector machine."""

    def test_weights_count(self):
        contexts = np.array([[0.0, 0.0], [0.0, 1.0]] * 20)
        labels = np.array([-1.0, 1.0] * 20)
        labels[:6] = -labels[:6]
        heavy = np.where(np.arange(40) < 6, 100.0, 1.0)
        for weights, sign in ((np.ones(40), 1), (heavy, -1)):
            slopes, bias = svm.fit_once(contexts, labels, weights, 10.0)
            self.assertGreater(sign * (slopes[1] + bias), 0)
            self.assertEqual(slopes[0], 0, "a count that is always the same says nothing")

    def test_one_label(self):
        slopes, bias = svm.fit_once(np.ones((4, 2)), -np.ones(4), np.ones(4), 1.0)
        self.assertEqual((list(slopes), bias), ([0, 0], -1.0))
