"""The weighted linear support vector machine, with C chosen by cross-validation.

Features are brought to mean 0 and deviation 1 and the result is converted back; the value of w · x + b, and with it the margin,
stays the same. Folds are of neighbouring intervals: those of one phase are too much alike to be in different folds.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

GRID = tuple(10.0**power for power in range(-3, 3))
FOLDS = 5
BLOCKS = 25
"""Runs of neighbouring instances that are dealt out to the folds by turns."""


@dataclass
class Fit:
    """A linear function of contexts, and how it was chosen."""

    weights: np.ndarray
    bias: float
    c: float
    gains: dict
    """For each C tried, the weighted share of right minus wrong decisions in folds that it was not fitted to."""

    def sums(self, contexts):
        """w · x + b of each row of contexts."""
        return contexts @ self.weights + self.bias


def fit_once(contexts, labels, weights, c):
    """A fit with one C; labels are -1 and 1. Weights and bias; a constant where there is only one label."""
    present = weights > 0
    contexts, labels, weights = contexts[present], labels[present], weights[present]
    if len(labels) == 0:
        return np.zeros(contexts.shape[1]), 0.0
    if len(np.unique(labels)) == 1:
        return np.zeros(contexts.shape[1]), float(labels[0])
    mean, deviation = contexts.mean(axis=0), contexts.std(axis=0)
    # A count that is always the same says nothing.
    constant = deviation < 1e-9
    scaled = (contexts - mean) / np.where(constant, 1.0, deviation)
    # The bias is regularized like a weight by this solver; a large constant feature makes that of no account.
    machine = LinearSVC(C=c, loss="hinge", dual=True, intercept_scaling=10.0, max_iter=5_000, random_state=0)
    with warnings.catch_warnings():
        # A large C on noise may not converge; cross-validation then finds it no better than others.
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine.fit(scaled, labels, sample_weight=weights / weights.mean())
    slopes = np.where(constant, 0.0, machine.coef_[0] / np.where(constant, 1.0, deviation))
    return slopes, float(machine.intercept_[0] - slopes @ mean)


def folds(groups):
    """The fold of each instance: neighbours of one group (a log) together."""
    found = np.zeros(len(groups), dtype=int)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        blocks = np.arange(len(members)) * BLOCKS // max(len(members), 1)
        found[members] = (blocks + group) % FOLDS
    return found


def fit(contexts, labels, weights, fold, grid=GRID):
    """The best fit. `fold`: number of the fold of each instance; with fewer than two folds there is no choice and C is 1."""
    numbers, gains = np.unique(fold), {}
    for c in grid if len(numbers) > 1 else ():
        gain = 0.0
        for number in numbers:
            out = fold == number
            slopes, bias = fit_once(contexts[~out], labels[~out], weights[~out], c)
            gain += np.sum(weights[out] * labels[out] * np.sign(contexts[out] @ slopes + bias))
        gains[c] = float(gain / max(weights.sum(), 1e-12))
    # Of equals the one with the widest margin.
    c = min(gains, key=lambda each: (-round(gains[each], 6), each)) if gains else 1.0
    slopes, bias = fit_once(contexts, labels, weights, c)
    return Fit(slopes, bias, c, gains)
