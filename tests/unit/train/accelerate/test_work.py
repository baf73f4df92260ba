"""How much an iteration does, and when it does something else."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hemiola.train.accelerate.measured import IterationWork, change


def test_forwards_and_what_they_are_given_add_up():
    given = ((torch.zeros(3, 4), {"mask": torch.zeros(2)}, "text"), {"labels": [torch.zeros(5)]})
    assert IterationWork().more(True, given).more(False, ()) == IterationWork(2, 1, 19)


def test_the_same_work_and_sizes_that_vary_are_no_change():
    assert change([], [IterationWork(1, 1, 8)]) == ""
    assert change([IterationWork(2, 1, 64)] * 8, [IterationWork(2, 1, 64)] * 12) == ""
    assert (
        change([IterationWork(2, 1, n) for n in (10, 30, 20)], [IterationWork(2, 1, n) for n in (25, 12, 40)])
        == ""
    )
    assert (
        change([IterationWork(4, 1, 64)] * 8, [IterationWork(1, 1, 16)] * 3 + [IterationWork(4, 1, 64)] * 9)
        == ""
    )


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ([IterationWork(1, 1, 64)] * 12, "an iteration had 4 forwards then and has 1 forwards now"),
        (
            [IterationWork(4, 4, 64)] * 12,
            "an iteration had 1 exchanges of gradients then and has 4 exchanges",
        ),
        (
            [IterationWork(4, 1, 6400)] * 12,
            "an iteration had 64 elements of input then and has 6,400 elements",
        ),
        ([IterationWork(4, 1, 64)] * 3 + [IterationWork(1, 1, 16)] * 9, "an iteration had 4 forwards"),
    ],
)
def test_other_work_is_named(now, words):
    assert change([IterationWork(4, 1, 64)] * 8, now).startswith(words)
