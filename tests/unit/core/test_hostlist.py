from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import InputError
from hemiola.core.hostlist import MAX_NAMES, compress, expand

NAMES = st.from_regex(r"[a-z0-9._-]{1,12}", fullmatch=True)
NUMBERED = st.builds(
    lambda prefix, number, width, suffix: f"{prefix}{number:0{width}d}{suffix}",
    st.sampled_from(["n", "gpu", "r1n", ""]),
    st.integers(0, 120),
    st.integers(1, 4),
    st.sampled_from(["", "-ib", "-2"]),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        (" n0 , n1 ", ["n0", "n1"]),
        ("n[0-2,7],login", ["n0", "n1", "n2", "n7", "login"]),
        ("gpu[08-11]-ib", ["gpu08-ib", "gpu09-ib", "gpu10-ib", "gpu11-ib"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[00]", ["n00"]),
        ("r[0-1]n[0-1]", ["r0n0", "r0n1", "r1n0", "r1n1"]),
        ("[0-1]", ["0", "1"]),
        ("/dev/nvidia[0-1]", ["/dev/nvidia0", "/dev/nvidia1"]),
    ],
)
def test_expands(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("n[0-3", 2, "no partner"),
        ("n0]", 3, "no partner"),
        ("n[[0]]", 2, "no partner"),
        ("a,,b", 3, "missing"),
        ("a,", 3, "missing"),
        ("n[]", 3, "neither a number"),
        ("n[0-3,x]", 7, "neither a number"),
        ("n[3-1]", 3, "backwards"),
        ("n[1-010]", 3, "padded differently"),
        ("n[01-2]", 3, "padded differently"),
        ("a b", 2, "does not belong"),
        ("n[1234567890123456]", 3, "neither a number"),
    ],
)
def test_names_the_place(text: str, place: int, problem: str) -> None:
    with pytest.raises(InputError, match=f"character {place}: .*{problem}"):
        expand(text)


@pytest.mark.parametrize(
    "text", ["n[0-1000000]", "n[0-999999999999]", "[0-999][0-999][0-1]", "n[0-999999],x"]
)
def test_refuses_runaway_sizes(text: str) -> None:
    with pytest.raises(InputError, match="more than 1,000,000 names"):
        expand(text)


def test_the_limit_itself_is_allowed() -> None:
    assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n0", "n1", "n2", "n7", "login"], "n[0-2,7],login"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n98", "n99", "n100"], "n[98-100]"),
        (["n098", "n099", "n100"], "n[098-100]"),
        (["r0n0", "r0n1", "r1n0", "r1n1"], "r[0-1]n[0-1]"),
        (["r0n0", "r1n0"], "r[0-1]n0"),
        (["n1", "n1"], "n1,n1"),
        (["a0b0", "a1b1"], "a0b0,a1b1"),
        ([f"p{p}r{r}n{n}" for p in (0, 1) for r in (0, 1) for n in (0, 1)], "p[0-1]r[0-1]n[0-1]"),
    ],
)
def test_compresses(names: list[str], text: str) -> None:
    assert compress(names) == text
    assert expand(text) == names


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a[0", "a]"])
def test_refuses_names_that_a_hostlist_cannot_hold(name: str) -> None:
    with pytest.raises(InputError, match="cannot hold"):
        compress(["n0", name])


@given(st.lists(st.one_of(NAMES, NUMBERED), max_size=30))
def test_round_trip_keeps_names_and_order(names: list[str]) -> None:
    assert expand(compress(names)) == names


@given(st.lists(NUMBERED, max_size=60, unique=True).map(sorted))
def test_round_trip_of_neighbours(names: list[str]) -> None:
    text = compress(names)
    assert expand(text) == names
    assert len(text) <= len(",".join(names)) + 1


@given(st.text(alphabet="n01-[],/ ", max_size=20))
def test_any_text_gives_names_or_an_input_error(text: str) -> None:
    try:
        names = expand(text)
    except InputError:
        return
    assert expand(compress(names)) == names


@given(st.integers(0, 5000), st.integers(0, 300))
def test_a_plain_range_is_one_bracket(low: int, more: int) -> None:
    names = [f"node{i}-x" for i in range(low, low + more + 2)]
    assert compress(names) == f"node[{low}-{low + more + 1}]-x"
