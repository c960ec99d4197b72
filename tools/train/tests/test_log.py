"""What is read from files, and what is refused with which words."""

import json
import unittest

import numpy as np

from palimpsest_train import SHADOW, Refusal, asp, intervals, log, offset, replay
from tests import synthetic

WORK = [(10, 500)] * 200


class Logs(unittest.TestCase):
    """Files of samples."""

    def refused(self, why, written, then=intervals.of):
        """It is refused with these words, which name the file."""
        with self.assertRaises(Refusal) as raised:
            then(synthetic.parsed(written))
        self.assertIn(why, str(raised.exception))
        self.assertIn("synthetic.jsonl", str(raised.exception))

    def test_intervals(self):
        data = intervals.of(synthetic.parsed(synthetic.random_text(WORK, seed=7)))
        drawn = intervals.draws(7, 200)
        self.assertTrue(np.array_equal(data.engine, drawn[data.position]))
        self.assertTrue(np.array_equal(data.before, drawn[data.position - 1]))
        self.assertTrue(np.all(data.counts == [10, 500]), "page faults in nested mode are as many as last seen")
        first = int(np.flatnonzero(drawn == SHADOW)[0])
        self.assertEqual(len(data), 200 - first - 1, "nothing is known before the first interval with shadow paging")

    def test_page_faults_that_the_guest_counts(self):
        work = [(number % 50, 500) for number in range(200)]
        data = intervals.of(synthetic.parsed(synthetic.random_text(work, counts=True)))
        self.assertTrue(np.array_equal(data.counts[:, 0], [work[at - 1][0] for at in data.position]), "with either engine")
        self.assertEqual(len(data), 199, "known from the beginning")

    def test_what_ran_is_a_workload(self):
        def of(*words):
            return synthetic.parsed(synthetic.random_text(WORK).replace(json.dumps(["pal", "run", "--exec", "sh /work"]), json.dumps(words))).workload

        self.assertEqual(of("pal", "run", "--exec", "sh /work"), "sh /work on synthetic")
        self.assertEqual(of("pal", "run", "--append", "quiet -- chase 500"), "chase 500 on synthetic")
        self.assertEqual(of("pal", "run", "--append", "quiet"), "a console on synthetic")

    def test_idle_intervals_are_left_out(self):
        lines = synthetic.random_text(WORK).splitlines()
        for at in range(40, 160):
            lines[at] = lines[at].replace('"instructions": 1000000', '"instructions": 0')
        data = intervals.of(synthetic.parsed("\n".join(lines)))
        # An interval after an idle one has no context.
        self.assertEqual(data.left_out + len(data), 200)
        self.assertTrue(60 <= len(data) < 80, len(data))
        self.assertTrue(np.all(data.counts == [10, 500]))

    def test_nothing_is_learnt_from_outside_of_the_work(self):
        work = [(number, 500) for number in range(200)]
        written = synthetic.parsed(synthetic.random_text(work, counts=True))
        everything = intervals.of(written)
        log.tell_work([written], [503], [1500])
        data = intervals.of(written)
        # The interval from 500 ms on has begun before the work, and the next one has its counts for a context.
        self.assertEqual(list(data.position), list(range(52, 150)))
        self.assertTrue(np.array_equal(data.counts[:, 0], data.position - 1))
        self.assertEqual(data.left_out, 200 - len(data))
        # The draws are still those of the whole log.
        self.assertTrue(np.array_equal(data.engine, everything.engine[51:149]))
        log.tell_work([written], [1900], [9999])
        with self.assertRaisesRegex(Refusal, "of its work can be used, and 40 are needed"):
            intervals.of(written)

    def test_nothing_is_learnt_from_what_was_not_counted(self):
        written = synthetic.random_text([(number, 500) for number in range(200)], counts=True)
        everything = intervals.of(synthetic.parsed(written))
        lines = [json.loads(line) for line in written.splitlines()]
        for line in lines[1:62]:
            line["guest"] = {key: value for key, value in line["guest"].items() if key in ("instructions", "page_faults")}
        parsed = synthetic.parsed("\n".join(json.dumps(line) for line in lines))
        self.assertEqual((int(parsed.samples["blind"].sum()), parsed.damaged), (61, 0))
        data = intervals.of(parsed)
        # The first counted interval has no context, and the draws are still those of the whole log.
        self.assertEqual(list(data.position), list(range(61, 200)))
        self.assertTrue(np.array_equal(data.engine, everything.engine[60:]))
        for line in lines[1:-1]:
            line["guest"] = {"instructions": 1_000_000}
        self.refused("no sample in it has counters", "\n".join(json.dumps(line) for line in lines))

    def test_times_of_the_work(self):
        logs = [synthetic.parsed(synthetic.random_text(WORK)) for _ in range(2)]
        with self.assertRaisesRegex(Refusal, "--begin-ms has 1 times for 2 logs"):
            log.tell_work(logs, [5], [])
        with self.assertRaisesRegex(Refusal, "begins at 500 ms and ends at 500 ms"):
            log.tell_work(logs, [5, 500], [1500, 500])
        logs = [synthetic.parsed(synthetic.random_text(WORK)) for _ in range(2)]
        log.tell_work(logs, [0, 500], [])
        self.assertEqual([each.knows_work for each in logs], [False, True])

    def test_draws_are_the_hypervisors(self):
        # The first outputs of SplitMix64 with the seed 0, from its authors' program.
        first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
        self.assertEqual([word >> 63 for word in first], list(intervals.draws(0, 4)))

    def test_longer_intervals_add_up(self):
        engines = np.repeat(intervals.draws(3, 60), 2)
        written = synthetic.text([(10, 500)] * 120, engines, "random,seed=3,interval_ms=20")
        data = intervals.of(synthetic.parsed(written))
        self.assertTrue(np.all(data.counts == [20, 1000]))

    def test_what_is_no_log(self):
        self.refused("not a file of samples", "")
        self.refused("not a file of samples", "hello\n[1]\n{}\n\x00\n" + "[" * 100_000)
        first = synthetic.random_text(WORK).splitlines(keepends=True)[0]
        self.refused("no sample in it has counters", first)
        self.refused("its schema is version 2", first.replace('"v": 1', '"v": 2'))

    def test_logs_without_chance(self):
        self.refused("chosen by nested, not by chance", synthetic.text(WORK, [0] * 200, "nested"))
        self.refused("chosen by dav2m", synthetic.text(WORK, [0] * 200, "dav2m,window_inst=5"))
        self.refused("each VM had its own", synthetic.text(WORK, [0] * 200, None))
        self.refused("only one action", synthetic.text(WORK, [0] * 200, "random,seed=1,interval_ms=10"))
        other = synthetic.text(WORK, intervals.draws(2, 200), "random,seed=1,interval_ms=10")
        self.refused("not the one that seed 1 draws", other)
        self.refused("intervals of 10 ms can be used, and 40 are needed", synthetic.random_text(WORK[:20]))
        self.refused("intervals of 1000 ms can be used", synthetic.random_text(WORK).replace(",interval_ms=10", ""))

    def test_damaged_logs(self):
        written = synthetic.random_text(WORK)
        self.refused("3 samples were dropped", written.replace('"dropped": 0', '"dropped": 3'))
        self.refused("several VMs (guest, other)", written.replace('"vm": "guest"', '"vm": "other"', 1))
        cut = synthetic.parsed(written[: len(written) * 2 // 3])
        self.assertEqual(cut.damaged, 1)
        self.assertGreater(len(intervals.of(cut)), 100)
        # A counter that ran backwards comes as a huge difference.
        line = json.loads(written.splitlines()[50])
        line["guest"]["cycles"] = (1 << 64) - 5
        lines = written.splitlines()
        lines[50] = json.dumps(line)
        self.assertEqual(synthetic.parsed("\n".join(lines)).damaged, 1)
        self.refused("restarted", written + written.splitlines()[1] + "\n")

    def test_logs_that_do_not_fit_together(self):
        logs = [synthetic.parsed(synthetic.random_text(WORK))]
        engines = np.repeat(intervals.draws(1, 100), 2)
        logs.append(synthetic.parsed(synthetic.text(WORK, engines, "random,seed=1,interval_ms=20")))
        with self.assertRaisesRegex(Refusal, "intervals of 10 ms, 20 ms"):
            offset.train(logs)
        nested = synthetic.parsed(synthetic.text(WORK, [0] * 200, "nested"))
        with self.assertRaisesRegex(Refusal, "only|are of nested paging"):
            asp.train([nested], 10)
        short = synthetic.parsed(synthetic.text(WORK[:90], [1] * 90, "shadow"))
        with self.assertRaisesRegex(Refusal, "runs of the same work"):
            asp.train([nested, short], 10)

    def test_policies_that_no_log_can_judge(self):
        written = synthetic.parsed(synthetic.random_text(WORK))
        data = intervals.of(written)
        for policy, why in [
            ("dav2m", "own probes"),
            ("switch=5", "counts exits"),
            ("random", "gains are over it"),
            ("threshold,interval_ms=15", "give it interval_ms=10"),
        ]:
            with self.assertRaisesRegex(Refusal, why):
                replay.choices("/no/such", policy, written, data)
