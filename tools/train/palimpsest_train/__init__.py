"""Trains the linear policies of the hypervisor from files of samples, and judges policies by them.

`cargo pal train` and `cargo pal evaluate` call this package (`tools/pal/src/train`), in an environment of its own under
`target/pal`. docs/policies.md has the commands; the algorithms are those of Hiebel, Brown, Wang: Constructing Dynamic Policies
for Paging Mode Selection (ICPP 2018), and of Kuang, Brown, Wang (Machine Learning 101, 2015).

`log` reads files, `intervals` makes contexts and rewards of those of the policy `random`, `phases` finds change points, `svm` fits,
`model` converts between floating point and the hypervisor's integers. `offset` and `asp` train, `oracle` makes schedules, `replay`
and `estimate` judge.
"""

NESTED, SHADOW = 0, 1
"""Engines as numbers: indices of arrays, and the order in which tables have them."""
ENGINES = ("nested", "shadow")


class Refusal(Exception):
    """Something that a person gave is of no use. The text names it, the cause, and what to do."""
