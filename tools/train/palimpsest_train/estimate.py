"""Off-policy evaluation: what another policy would have gained, from a log of random choices.

The reward of an interval depends on its engine, and by the cost of a change on the one before. So the unit is a pair: interval t
counts for a policy if the log's engines at t - 1 and t are both the policy's, and then with weight 1 / (1/2 · 1/2). A *value* is the
mean reward that a policy would have had; rewards are logarithms, so that differences of values are ratios of speed.

- *Inverse propensity* (IPS) is the mean of these weighted rewards.
- *Doubly robust* (DR; Dudík, Langford, Li, ICML 2011) adds a model of the reward, fitted to other parts of the log: it predicts the
  intervals that do not match, and what it gets wrong is corrected by those that do.

Both are right on average as long as what a guest does from interval to interval does not depend on the engine, and the choices
of two intervals are all that matters to the second one's speed.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from . import NESTED, SHADOW
from .intervals import PROPENSITY

FOLDS = 5
LEVEL = 0.95


@dataclass
class Difference:
    """A difference of two values, with the ends of its confidence interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, terms):
        """The mean of terms that may depend on their neighbours, as those of a phase do.

        The variance of such a mean is that of slow waves: the mean of the squares of the first cosine coefficients, and
        Student's t has as many degrees of freedom (Lazarus, Lewis, Stock, Watson, Journal of Business & Economic Statistics,
        2018). Taking neighbours for independent gives intervals that are too narrow by half where phases are long.
        """
        terms = np.asarray(terms, dtype=float)
        count = len(terms)
        mean = terms.mean()
        waves = np.arange(1, max(int(0.4 * count ** (2 / 3)), 1) + 1)
        cosines = np.cos(np.pi * waves[:, None] * (np.arange(count) + 0.5) / count)
        variance = np.mean((cosines @ (terms - mean)) ** 2) * 2 / count
        half = stats.t.ppf((1 + LEVEL) / 2, len(waves)) * np.sqrt(variance / count)
        return cls(float(mean), float(mean - half), float(mean + half))

    @staticmethod
    def percent(logarithm):
        """A difference of logarithms as a change of speed."""
        return f"{np.expm1(logarithm) * 100:+.1f} %"

    def __str__(self):
        return f"{self.percent(self.mean)} [{self.percent(self.low)}, {self.percent(self.high)}]"


@dataclass
class Choices:
    """What a policy would have chosen: the engines of an interval and of the one before."""

    before: np.ndarray
    engine: np.ndarray

    @classmethod
    def static(cls, engine, count):
        """The same engine always."""
        return cls(np.full(count, engine), np.full(count, engine))


def features(contexts, before, engine):
    """Of the model of rewards: what the guest did, with each engine, and whether it changed."""
    sign, other = np.where(engine == SHADOW, 1.0, -1.0)[:, None], (engine != before).astype(float)[:, None]
    rows = np.hstack([np.ones((len(contexts), 1)), contexts])
    return np.hstack([rows, rows * sign, rows * other, sign * other])


def predictor(data, train):
    """A ridge regression of the rewards of the intervals in `train`."""
    rows = features(data.contexts[train], data.before[train], data.engine[train])
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-9)
    rows = rows / scale
    slopes = np.linalg.solve(rows.T @ rows + 1e-3 * np.eye(rows.shape[1]), rows.T @ data.reward[train])
    return lambda part, choices: features(data.contexts[part], choices.before[part], choices.engine[part]) / scale @ slopes


def terms(data, choices):
    """Of each interval its part of the value of these choices: (inverse propensity, doubly robust)."""
    match = (choices.before == data.before) & (choices.engine == data.engine)
    weight = match / PROPENSITY**2
    simple = weight * data.reward
    robust = np.empty(len(data))
    fold = np.arange(len(data)) * FOLDS // len(data)
    logged = Choices(data.before, data.engine)
    for number in range(FOLDS):
        part = fold == number
        predict = predictor(data, ~part)
        robust[part] = predict(part, choices) + weight[part] * (data.reward[part] - predict(part, logged))
    return simple, robust


@dataclass
class Estimates:
    """What a policy would have gained, by both estimators."""

    ips: Difference
    dr: Difference


def gains(data, choices):
    """The policy's gains over the log's own choices and over either engine alone: a dictionary of `Estimates`."""
    own = terms(data, choices)
    statics = {engine: terms(data, Choices.static(engine, len(data))) for engine in (NESTED, SHADOW)}
    baselines = {
        "the log": (data.reward, data.reward),
        "nested": statics[NESTED],
        "shadow": statics[SHADOW],
    }
    return {name: Estimates(*(Difference.of(mine - theirs) for mine, theirs in zip(own, base))) for name, base in baselines.items()}
