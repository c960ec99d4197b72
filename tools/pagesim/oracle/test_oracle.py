"""Miss counts of `cargo pal replace` beside those of libCacheSim, an independent library.

PAL is the program. Both count a miss at each access to what is not there. Parameters are the same in both: CLOCK has one bit that a
miss leaves clear; S3-FIFO has a small queue of a tenth and ghosts of nine tenths, and two accesses move a page on. Memories have 20
frames or more: libCacheSim's S3-FIFO takes nothing in while its small queue has room for one page only. Belady's is told the next
access of each request. APR and SEQ are not in both. libCacheSim has a CLOCK-Pro, of which no parameter makes ours.
"""

import json
import os
import random
import subprocess
import tempfile
import unittest

import libcachesim

PAL = os.environ["PAL"]
POLICIES = {
    "lru": lambda frames: libcachesim.LRU(frames, hashpower=SMALL),
    "clock": lambda frames: libcachesim.Clock(frames, hashpower=SMALL, init_freq=0, n_bit_counter=1),
    "sieve": lambda frames: libcachesim.Sieve(frames, hashpower=SMALL),
    "s3-fifo": lambda frames: libcachesim.S3FIFO(
        frames, hashpower=SMALL, small_size_ratio=0.1, ghost_size_ratio=0.9, move_to_main_threshold=2
    ),
    "opt": lambda frames: libcachesim.Belady(frames, hashpower=SMALL),
}
NEVER = 2**63 - 1
# Of the library's tables, as a power of two: its usual ones take longer to clear than these traces.
SMALL = 12


def theirs(trace, policy, frames):
    """Misses of libCacheSim's policy."""
    following, seen = [NEVER] * len(trace), {}
    for at in range(len(trace) - 1, -1, -1):
        following[at] = seen.get(trace[at], NEVER)
        seen[trace[at]] = at
    cache, misses = POLICIES[policy](frames), 0
    for page, after in zip(trace, following):
        request = libcachesim.Request(obj_id=page, obj_size=1, next_access_vtime=after)
        misses += not cache.get(request)
    return misses


def perform(command):
    """Runs our program; what it says is shown only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{command}: {done.stderr}")


def ours(file, frames, *options):
    """Faults of our policies, by policy and frames."""
    with tempfile.TemporaryDirectory() as folder:
        found = os.path.join(folder, "found.json")
        sizes = ",".join(str(size) for size in frames)
        command = [PAL, "replace", "--trace", file, "--memory", sizes, "--json", found]
        command += ["--policy", ",".join(POLICIES), *options]
        perform(command)
        with open(found, encoding="utf-8") as text:
            results = json.load(text)["results"]
    return {(result["policy"], result["frames"]): result["faults"] for result in results}


def read(file):
    """Our format, read from its description (docs/replacement.md): the page of each reference."""
    with open(file, "rb") as opened:
        data = opened.read()
    assert data[:9] == b"PALPAGES\x01"
    at, page, pages = 9, 0, []

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    def run(first):
        nonlocal page
        zigzag = first >> 2
        page += -(zigzag + 1) // 2 if zigzag % 2 else zigzag // 2
        return [page] * (number() if first & 3 == 1 else 1)

    while True:
        first = number()
        if first & 3 < 2:
            pages += run(first)
        elif first >> 2 == 0:
            assert number() == len(pages) and at == len(data)
            return pages
        elif first >> 2 == 1:
            number(), number()
        else:
            times = number()
            once = []
            for _ in range(first >> 2):
                once += run(number())
            pages += once * times


def mixed(seed, length, pages):
    """Loops, scans, hot sets and noise, one after the other."""
    draw, trace = random.Random(seed), []
    while len(trace) < length:
        begin, width = draw.randrange(pages), draw.randrange(2, pages)
        count, kind = draw.randrange(50, 400), draw.randrange(4)
        for n in range(count):
            if kind == 0:
                page = begin + n % width
            elif kind == 1:
                page = begin + int(width * draw.random() ** 3)
            elif kind == 2:
                page = 10**6 + len(trace)
            else:
                page = draw.randrange(pages)
            trace += [page] * draw.choice([1, 1, 1, 2, 4])
    return trace


class Oracle(unittest.TestCase):
    """Each of these compares all policies that both have."""

    def compare(self, trace, found, frames):
        for policy in POLICIES:
            for size in frames:
                with self.subTest(policy=policy, frames=size):
                    self.assertEqual(found[policy, size], theirs(trace, policy, size))

    def test_random_traces(self):
        for seed in range(6):
            trace, frames = mixed(seed, 4000, 150), [20, 47, 100]
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write("\n".join(str(page) for page in trace))
                file.flush()
                self.compare(trace, ours(file.name, frames), frames)

    def test_formats(self):
        trace, frames = mixed(9, 2000, 80), [30]
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("time,obj_id,obj_size\n")
            file.writelines(f"{n},{page},1\n" for n, page in enumerate(trace))
            file.flush()
            self.compare(trace, ours(file.name, frames), frames)
        with tempfile.NamedTemporaryFile(suffix=".oracleGeneral") as file:
            for n, page in enumerate(trace):
                record = [(n, 4), (page, 8), (1, 4), (0, 8)]
                file.write(b"".join(value.to_bytes(size, "little") for value, size in record))
            file.flush()
            self.compare(trace, ours(file.name, frames), frames)

    def test_programs(self):
        for program, scale, frames in [
            ("radiosity", "0.05", [20, 25]),
            ("raytrace", "0.0625", [20, 60]),
            ("volrend", "0.25", [20, 24]),
        ]:
            with tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "trace")
                command = [PAL, "replace", "--generate", program, "--scale", scale, "-o", file]
                perform(command)
                trace = read(file)
                self.assertGreater(len(set(trace)), frames[-1], program)
                self.compare(trace, ours(file, frames), frames)


if __name__ == "__main__":
    unittest.main()
