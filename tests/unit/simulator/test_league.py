"""What a league plays, that it goes on where it was, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hemiola.core.errors import InputError
from hemiola.core.job import Batch, Demand, Profile, Workload
from hemiola.simulator.league import League, is_clairvoyant, load_league, play
from hemiola.simulator.sweep import Here
from hemiola.simulator.sweep.tasks import Work
from hemiola.trace.workloads import write_workload

SMALL = League(
    traces={"muri": "generated:jobs=24,mix=muri,largest=8"},
    fabrics={"flat": "flat:hosts=2,gpus_per_host=4"},
    policies=("fifo", "srsf"),
    champion="tiresias",
    loads=("1.5",),
    seeds=2,
    jobs=24,
)


@dataclass(frozen=True)
class Counting:
    """Runs in this process, counts them, and stops as Ctrl-C would after so many."""

    most: int = 1000
    done: list[str] = field(default_factory=list)

    def answers(self, work: Work) -> Iterator[object]:
        for task, answer in islice(Here().answers(work), self.most):
            self.done.append(task.name)
            yield task, answer


def write_jobs(path: Path, gaps_s: float, count: int, gpus: int = 1) -> None:
    rows = [f"j{n},{n * gaps_s},{gpus},{600 + n}" for n in range(count)]
    path.write_text("\n".join(["id,submit_s,gpus,duration_s", *rows, ""]))


def test_all_policies_see_the_same_jobs_and_nobody_beats_the_bound() -> None:
    (cell,), missing = play(SMALL, Here())
    assert missing == 0
    assert cell.policies == ("fifo", "srsf", "tiresias")
    assert [one.seed for one in cell.slices] == [0, 1]
    for one in cell.slices:
        assert len(one.submit_s) == 24
        for name in cell.policies:
            assert one.jct_s(name).mean() >= one.bound_s * (1 - 1e-9)


def test_a_league_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    cut, more, again = Counting(4), Counting(), Counting()
    cells, missing = play(SMALL, cut, folder=tmp_path)  # type: ignore[arg-type]
    assert (len(cells[0].slices), missing) == (1, 2)
    whole, missing = play(SMALL, more, folder=tmp_path)  # type: ignore[arg-type]
    assert (len(cut.done), len(more.done), missing) == (4, 2, 0)
    same, _ = play(SMALL, again, folder=tmp_path)  # type: ignore[arg-type]
    assert again.done == []
    for one, two, three in zip(
        whole[0].slices, same[0].slices, play(SMALL, Here())[0][0].slices, strict=True
    ):
        for name, entry in one.entries.items():
            assert np.array_equal(entry.jct_s, two.entries[name].jct_s)
            assert np.array_equal(entry.jct_s, three.entries[name].jct_s)


def test_slices_are_consecutive_jobs_at_the_load_that_was_asked_for(tmp_path: Path) -> None:
    write_jobs(tmp_path / "t.csv", gaps_s=1.0, count=50)
    league = msgspec.structs.replace(
        SMALL, traces={"t": str(tmp_path / "t.csv")}, jobs=20, loads=("0.5", "recorded")
    )
    (stretched, recorded), _ = play(league, Here())
    span_s = np.sum([600 + n for n in range(20)]) / (0.5 * 8)
    assert stretched.slices[0].submit_s[-1] == pytest.approx(span_s)
    assert stretched.slices[1].submit_s[-1] > span_s  # later jobs run longer
    assert recorded.slices[0].submit_s.tolist() == [float(n) for n in range(20)]


def test_several_files_take_turns_by_seed(tmp_path: Path) -> None:
    for name, count in (("a", 5), ("b", 7)):
        write_jobs(tmp_path / f"{name}.csv", 1.0, count)
    league = msgspec.structs.replace(SMALL, traces={"t": str(tmp_path / "*.csv")}, seeds=3)
    (cell,), _ = play(league, Here())
    assert [len(one.submit_s) for one in cell.slices] == [5, 7, 5]


def test_long_jobs_are_cut_and_jobs_too_large_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,submit_s,gpus,duration_s\na,0,1,999999\nb,1,64,10\nc,2,1,60\n")
    league = msgspec.structs.replace(
        SMALL, traces={"t": str(tmp_path / "t.csv")}, seeds=1, longest="1h", loads=("recorded",)
    )
    (cell,), _ = play(league, Here())
    assert cell.slices[0].jct_s("fifo").tolist() == [3600.0, 60.0]


def test_slow_policies_play_a_subset_against_all_others() -> None:
    league = msgspec.structs.replace(SMALL, subset=("gittins",), loads=("1.5", "0.5"))
    cells, _ = play(league, Here())
    assert [(cell.load, cell.subset, len(cell.slices), len(cell.policies)) for cell in cells] == [
        ("1.5", False, 2, 3), ("1.5", True, 1, 4), ("0.5", False, 2, 3),
    ]  # fmt: skip


def test_elastic_jobs_are_bounded_by_their_best_size(tmp_path: Path) -> None:
    """A job of 100 s on one GPU that may have four takes 25 s, and no more GPU-seconds."""
    (tmp_path / "t.csv").write_text("id,submit_s,gpus,duration_s,gpus_min,gpus_max\na,0,1,100,1,4\n")
    league = msgspec.structs.replace(
        SMALL, traces={"t": str(tmp_path / "t.csv")}, seeds=1, loads=("recorded",), mixes={"t": "none"},
        policies=("elastic",), champion="fifo",
    )  # fmt: skip
    (cell,), _ = play(league, Here())
    assert cell.slices[0].bound_s == 25.0


def test_faster_gpus_lower_the_bound(tmp_path: Path) -> None:
    """A profile that computes up to twice as fast on a type that is there."""
    quick = Profile(name="m", demands=(Demand(1, 1.0, 0.0),), gpu_speed={"B": 2.0})
    jobs = Workload(jobs=(Batch(id="a", submit_s=0.0, gpus=1, duration_s=100.0, profile=quick),))
    write_workload(jobs, tmp_path / "t.json")
    league = msgspec.structs.replace(
        SMALL, traces={"t": str(tmp_path / "t.json")}, seeds=1, loads=("recorded",), policies=("fifo",),
        fabrics={"two": "flat:hosts=2,gpus_per_host=1,gpu_type=A+B"},
    )  # fmt: skip
    (cell,), _ = play(league, Here())
    assert cell.slices[0].bound_s == 50.0


def test_who_goes_by_true_run_times_says_so() -> None:
    assert {name: is_clairvoyant(name) for name in ("srsf", "sjf", "themis", "fifo", "hemiola", "dally:oracle=true")} == {
        "srsf": True, "sjf": True, "themis": True, "fifo": False, "hemiola": False, "dally:oracle=true": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"traces": {}}, "no traces"),
        ({"fabrics": {}}, "no fabrics"),
        ({"loads": ("much",)}, "load 'much'"),
        ({"loads": ("-1",)}, "load '-1'"),
        ({"seeds": 0}, "seeds is 0"),
        ({"jobs": 0}, "jobs is 0"),
        ({"rate": 1.0}, "rate is 1.0"),
        ({"first_seed": -1}, "first_seed is -1"),
        ({"mixes": {"other": "muri"}}, "'other', which is no trace"),
        ({"traces": {"t": "nowhere.csv"}}, "nowhere.csv does not exist"),
        ({"fabrics": {"one": "flat:hosts=1,gpus_per_host=1"}, "traces": {"big": "generated:jobs=5,mix=muri,largest=8,gpus=8,seed=3"}}, ""),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_before_anything_runs(change: dict[str, object], told: str) -> None:
    counting = Counting(0)
    if told:
        with pytest.raises(InputError, match=told):
            play(msgspec.structs.replace(SMALL, **change), counting)  # type: ignore[arg-type]
        assert counting.done == []
    else:  # those that fit are left
        cells, _ = play(msgspec.structs.replace(SMALL, **change), Here())
        assert all(len(one.submit_s) < 5 for cell in cells for one in cell.slices)


def test_a_file_says_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "league.toml").write_text(
        'loads = ["1.0"]\n[traces]\nmine = "jobs.csv"\ndrawn = "generated:jobs=5"\n[fabrics]\nf = "flat:hosts=1,gpus_per_host=1"\n'
    )
    league = load_league(tmp_path / "league.toml")
    assert league.traces == {"mine": str(tmp_path / "jobs.csv"), "drawn": "generated:jobs=5"}
    (tmp_path / "league.toml").write_text("load = 1\n")
    with pytest.raises(InputError, match="the keys of a league are"):
        raise_keys(tmp_path / "league.toml")


def raise_keys(path: Path) -> None:
    try:
        load_league(path)
    except InputError as error:
        raise InputError(f"{error.what}: {error.remedy}", "") from error


def test_hemiola_wins_where_its_results_say_so() -> None:
    """A small stretch of two kinds of cells of docs/results/league.md: elastic jobs in bursts, and a busy cluster."""
    hosts = "leaf-spine:hosts=8,gpus_per_host=4,hosts_per_rack=4,nic=25gbit,oversubscription=4"
    league = League(
        traces={
            "elastic": "generated:jobs=160,mix=helios,largest=16,arrivals=burst,elastic=0.5",
            "muri-like": "generated:jobs=160,mix=muri,largest=16",
        },
        fabrics={"slow": hosts}, policies=("tiresias:placement=consolidated", "elastic", "dally"), loads=("1.5",), seeds=2,
        jobs=160, mixes={"muri-like": "muri"},
    )  # fmt: skip
    cells, _ = play(league, Here())
    gains = {
        cell.trace: cell.times_bound("hemiola") / min(cell.times_bound(name) for name in league.policies)
        for cell in cells
    }
    assert gains["elastic"] < 0.9
    assert gains["muri-like"] < 0.97
