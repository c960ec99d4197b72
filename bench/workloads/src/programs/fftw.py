"""The work of `fftw`: complex transforms of several shapes by FFTW, there and back, as its own benchmark has them. Reads a
number of rounds.

What comes back is whole numbers again; the transform itself is looked at by energy and by its first element, the sum. Plans
are estimated: measured ones would depend on time."""

import sys

sys.path.append("/usr/lib/python3/dist-packages")
import numpy as np
import pyfftw

# A power of two, one with the factors 3, 5 and 7, a plane, and a cube.
SHAPES = ((1 << 18,), (3 * 5 * 7 * 2500,), (512, 512), (64, 64, 64))


def there_and_back(shape, number):
    here, there = (pyfftw.empty_aligned(shape, dtype="complex128") for _ in range(2))
    axes = tuple(range(len(shape)))
    plan = lambda a, b, to: pyfftw.FFTW(a, b, axes=axes, direction=to, flags=("FFTW_ESTIMATE",))
    forward, backward = plan(here, there, "FFTW_FORWARD"), plan(there, here, "FFTW_BACKWARD")
    places = np.arange(here.size, dtype=np.int64).reshape(shape)
    real, imaginary = (places * 7919 + number) % 1009, (places * 104729 + number) % 997
    here[:] = real + 1j * imaginary
    forward.execute()
    total = there.ravel()[0]
    energy = np.rint(np.vdot(there, there).real / here.size)
    assert energy == np.sum(real * real + imaginary * imaginary)
    backward.execute()
    here /= here.size
    assert (np.rint(here.real) == real).all() and (np.rint(here.imag) == imaginary).all()
    assert abs(here.real - real).max() < 1e-8
    return int(np.rint(total.real)), int(np.rint(total.imag)), int(energy)


for number in range(int(sys.argv[1])):
    for shape in SHAPES:
        print(number, *shape, *there_and_back(shape, number))
