"""The work of `numpy`: products, a solution, sorting, gathering and transforms. Reads a number of rounds.

All numbers are whole, and sums of them exact in a double, so that the order in which a library adds does not matter: what is
printed is the same on any processor."""

import sys

sys.path.append("/usr/lib/python3/dist-packages")
import numpy as np


def numbers(seed, count, below):
    """Whole numbers from a generator that is written down here: a library's may change."""
    one = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    one = (one ^ (one >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    one = (one ^ (one >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((one ^ (one >> np.uint64(31))) % np.uint64(below)).astype(np.int64)


def checksum(values):
    """Depends on each value and its place."""
    values = values.ravel().astype(np.uint64)
    weights = np.arange(1, values.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return "%016x" % int(np.sum(values * (weights | np.uint64(1)), dtype=np.uint64))


def product(seed):
    size = 192
    left, right = numbers(seed, 2 * size * size, 1 << 12).reshape(2, size, size)
    return (left.astype(float) @ right.astype(float)).astype(np.int64)


def solution(seed):
    """Of equations whose solution is known and whole."""
    size = 128
    matrix = numbers(seed, size * size, 16).reshape(size, size) + 64 * size * np.eye(size, dtype=np.int64)
    wanted = numbers(seed + 1, size, 1000)
    found = np.rint(np.linalg.solve(matrix.astype(float), (matrix @ wanted).astype(float))).astype(np.int64)
    assert (found == wanted).all()
    return found


def order(seed):
    values = numbers(seed, 1 << 18, 1 << 30)
    places = np.argsort(values, kind="stable")
    values = values[places]
    assert (values[1:] >= values[:-1]).all()
    return places ^ values


def convolution(seed):
    """By transforms, and some of its elements by the sum that defines it."""
    size = 1 << 15
    left, right = numbers(seed, 2 * size, 1 << 8).reshape(2, size)
    result = np.fft.irfft(np.fft.rfft(left, 2 * size) * np.fft.rfft(right, 2 * size), 2 * size)
    result = np.rint(result).astype(np.int64)
    for place in (0, 77, size - 1):
        assert result[place] == np.dot(left[: place + 1], right[place::-1])
    return result


for number in range(int(sys.argv[1])):
    print(number, *(checksum(part(number << 8)) for part in (product, solution, order, convolution)))
