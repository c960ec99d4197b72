"""A linear model, in the trainer's floating point and in the hypervisor's integers, and its file.

The hypervisor (`hv/src/paging/policy/linear.rs`) takes weights, bias and margin in 65536ths. `abi/src/policy.rs` has the limits of
the parameters, `tools/pal/src/train/model.rs` reads the file.
"""

from dataclasses import dataclass

import numpy as np

from . import NESTED, SHADOW, Refusal

ONE = 1 << 16
LARGEST_WEIGHT = 1000
LARGEST_BIAS = 100 * LARGEST_WEIGHT
STAY = -1
"""What a model wants within its margin: the engine as it is."""
VERSION = 1
"""Of the file."""
KEYS = {"dsp-offset": ("faults", "misses", "bias", "margin", "interval_ms"), "asp-svm": ("faults", "misses", "bias", "interval_ms")}


@dataclass
class Model:
    """`faults` and `misses` weigh log2(1 + count); a sum above the margin asks for shadow paging, below its negative for nested."""

    policy: str
    faults: float
    misses: float
    bias: float
    margin: float
    interval_ms: int

    def sums(self, contexts):
        """w · x + b of each row of contexts."""
        return contexts @ np.array([self.faults, self.misses]) + self.bias

    def wanted(self, contexts):
        """`NESTED`, `SHADOW` or `STAY` for each row of contexts."""
        sums = self.sums(contexts)
        return np.where(sums > self.margin, SHADOW, np.where(sums < -self.margin, NESTED, STAY))

    def integers(self):
        """The parameters as the hypervisor takes them.

        Raises `Refusal` where one is no number or beyond the hypervisor's limits.
        """
        limits = {"faults": LARGEST_WEIGHT, "misses": LARGEST_WEIGHT, "bias": LARGEST_BIAS, "margin": LARGEST_WEIGHT}
        found = {}
        for key in KEYS[self.policy]:
            value = getattr(self, key)
            if key in limits:
                if not np.isfinite(value) or abs(value) > limits[key]:
                    raise Refusal(f"the model's {key} is {value:g}, and the hypervisor takes {limits[key]} at most: the logs hold too "
                                  "little that tells the engines apart; train from more of them")
                value = round(float(value) * ONE)
            found[key] = int(value)
        return found

    def words(self):
        """As `--policy` and the monitor's `mode` take it."""
        return ",".join([self.policy, *(f"{key}={value}" for key, value in self.integers().items())])

    def toml(self, remarks):
        """The file's text, with `remarks` as comments."""
        lines = [f"# {line}".rstrip() for line in remarks]
        lines += [f"version = {VERSION}", f'policy = "{self.policy}"']
        lines += [f"{key} = {value}" for key, value in self.integers().items()]
        return "\n".join(lines) + "\n"
