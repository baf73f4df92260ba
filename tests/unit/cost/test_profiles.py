"""Job profiles: look-ups, mixes, the user's file, and the derivation of the shipped numbers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from repository import ROOT

from hemiola.core.errors import InputError
from hemiola.core.job import Demand, Profile, Workload, batch_job
from hemiola.cost.profiles import SCHEMA, Band, ModelMix, ProfileLibrary, assign, load_library

LIBRARY = load_library()


@cache
def tool() -> ModuleType:
    """The derivation script, as a module."""
    spec = importlib.util.spec_from_file_location("derive_profiles", ROOT / "tools/derive_profiles.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["derive_profiles"] = module
    spec.loader.exec_module(module)
    return module


def profile(name: str, *gpus: int) -> Profile:
    return Profile(name=name, demands=tuple(Demand(k, 1.0, 0.0 if k == 1 else 1e9) for k in gpus or (1, 8)))


def workload(*jobs: tuple[str, int], fmt: str = "") -> Workload:
    made = (batch_job(id=str(i), submit_s=i, gpus=k, duration_s=1, model=m) for i, (m, k) in enumerate(jobs))
    return Workload(jobs=tuple(made), format=fmt)


def given(work: Workload) -> list[str]:
    return [job.profile.name if job.profile else "" for job in work.jobs]


# --- the shipped library --------------------------------------------------------------------------


def test_shipped_file_is_small_and_sound() -> None:
    path = ROOT / "src/hemiola/cost/data/profiles.json"
    assert path.stat().st_size < 60_000
    assert len(LIBRARY.names) == len(set(LIBRARY.names)) == 52
    for each in LIBRARY.profiles:
        assert each.source and each.gpu_speed[each.gpu_type] == 1.0
        assert each.checkpoint_s > 0 and each.restore_s > 0
        assert all(d.traffic_bytes == 0 for d in each.demands if d.gpus == 1)


def test_gpt2_is_what_muri_measured() -> None:
    gpt2 = LIBRARY.find("gpt2")
    assert gpt2 is not None
    assert gpt2.demand(16).compute_s == 0.415
    assert gpt2.demand(16).traffic_bytes == pytest.approx(0.137 * 12.5e9, rel=1e-3)
    assert gpt2.demand(32).traffic_bytes == pytest.approx(0.216 * 12.5e9, rel=1e-3)
    assert gpt2.overlap == pytest.approx((0.061 * 0.415 + 0.116 * 0.414) / (0.415**2 + 0.414**2), rel=1e-3)


@pytest.mark.parametrize(
    ("model", "source", "name"),
    [
        ("gpt2", "", "muri/gpt2"),
        ("GPT-2", "", "muri/gpt2"),
        ("muri/VGG_16", "", "muri/vgg16"),
        ("shufflenet_v2_x1_0", "", "muri/shufflenet_v2_x1_0"),
        ("bert", "", "muri/bert"),
        ("bert", "pollux", "pollux/bert"),
        ("bert", "gavel", "muri/bert"),
        ("imagenet", "", "pollux/imagenet"),
        ("ResNet-50 (batch size 64)", "", "gavel/ResNet-50 (batch size 64)"),
        ("ResNet-50 (batch size 999)", "", "gavel/ResNet-50 (batch size 32)"),
        ("resnet50", "", "gavel/ResNet-50 (batch size 32)"),
        ("ResNet-18 (batch size 16)", "", "gavel/ResNet-18 (batch size 16)"),
        ("resnet18", "", "muri/resnet18"),
        ("resnet18", "gavel", "gavel/ResNet-18 (batch size 64)"),
        ("vit-large@food101", "", "titan/vit-large"),
        ("vgg19", "tiresias", "muri/vgg19"),
        ("inception4", "", "tiresias/inception4"),
        ("Inception-v3", "", "tiresias/inception3"),
        ("A3C", "", "gavel/A3C"),
    ],
)
def test_find(model: str, source: str, name: str) -> None:
    found = LIBRARY.find(model, source=source)
    assert found is not None and found.name == name


@pytest.mark.parametrize("model", ["", "  ", "googlenet", "llama", "(batch size 64)", "@food101", "muri"])
def test_find_nothing(model: str) -> None:
    assert LIBRARY.find(model) is None


def test_every_shipped_mix_can_run_jobs_of_any_size() -> None:
    jobs = workload(*[("", k) for k in (1, 2, 8, 16, 100, 512)] * 50)
    for name in LIBRARY.mixes:
        assert all(given(assign(jobs, LIBRARY, mix=name, seed=1)))


# --- assign ---------------------------------------------------------------------------------------


def test_named_models_are_kept_apart_from_drawn_ones() -> None:
    done = assign(workload(("gpt2", 8), ("", 8), ("unheard-of", 8)), LIBRARY, mix="vgg16=1", seed=0)
    assert given(done) == ["muri/gpt2", "muri/vgg16", "muri/vgg16"]
    assert done.notes == ("profiles: 1 named by the trace, 2 drawn from mix 'vgg16=1', seed 0",)


def test_the_trace_format_says_whose_bert() -> None:
    assert given(assign(workload(("bert", 4), fmt="pollux"), LIBRARY, seed=0)) == ["pollux/bert"]
    assert given(assign(workload(("bert", 4), fmt="muri"), LIBRARY, seed=0)) == ["muri/bert"]


def test_a_profile_that_is_there_stays() -> None:
    own = profile("own")
    job = batch_job(id="a", submit_s=0, gpus=2, duration_s=1, profile=own, model="gpt2")
    assert assign(Workload(jobs=(job,)), LIBRARY, seed=0).jobs[0] is job
    assert assign(Workload(jobs=(job,)), LIBRARY, mix="none", seed=0).jobs[0].profile is None


def test_draws_depend_on_seed_and_place_alone() -> None:
    plain = workload(*[("", 4)] * 100)
    first = given(assign(plain, LIBRARY, seed=7))
    assert first == given(assign(plain, LIBRARY, seed=7)) != given(assign(plain, LIBRARY, seed=8))
    some = workload(*[("gpt2" if i % 2 else "", 4) for i in range(100)])
    assert given(assign(some, LIBRARY, seed=7))[::2] == first[::2]


def test_draw_is_the_inverse_of_the_shares() -> None:
    library = ProfileLibrary([profile("s/a"), profile("s/b"), profile("s/c")])
    mix = ModelMix("test", (Band(1, {"s/a": 1, "s/b": 3}), Band(8, {"s/c": 5, "s/a": 0})))
    uniform = np.array([0.0, 0.2499, 0.25, 0.999, 0.0, 0.999])
    drawn = library.draw(mix, np.array([1, 2, 7, 7, 8, 900]), uniform)
    assert [p.name for p in drawn] == ["s/a", "s/a", "s/b", "s/b", "s/c", "s/c"]
    seeded = np.random.Generator(np.random.PCG64(3)).random(5)
    work = assign(workload(*[("", 1)] * 5), library, mix={"a": 1, "b": 3}, seed=3)
    assert given(work) == ["s/a" if u < 0.25 else "s/b" for u in seeded]


def test_shares_come_out() -> None:
    names = given(assign(workload(*[("", 1)] * 20_000), LIBRARY, mix={"gpt2": 0.3, "vgg16": 0.7}, seed=1))
    assert names.count("muri/gpt2") / 20_000 == pytest.approx(0.3, abs=0.01)


def test_a_model_measured_on_one_gpu_is_not_used_on_more() -> None:
    done = assign(workload(("A3C", 1), ("A3C", 4)), LIBRARY, mix="gpt2=1", seed=0)
    assert given(done) == ["gavel/A3C", "muri/gpt2"]
    with pytest.raises(InputError, match="job '0' on 4 GPUs"):
        assign(workload(("", 4)), LIBRARY, mix="A3C=1", seed=0)


def test_none_and_nothing() -> None:
    done = assign(workload(("gpt2", 8), ("", 1)), LIBRARY, mix="none", seed=0)
    assert given(done) == ["", ""] and "none" in done.notes[0]
    assert assign(workload(), LIBRARY, seed=0).jobs == ()


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (
            "philly",
            "unknown mix 'philly'\n  hint: use one of default, muri, pollux, gavel, lingjun-like, none",
        ),
        ("gpt9=1", "no profile of 'gpt9'\n  hint: known: muri/a2c"),
        ("gpt2=1+vgg16", "'vgg16' has no share"),
        ("gpt2=much", "'gpt2=much' has no share"),
        ("gpt2=1+gpt2=2", "'gpt2' twice"),
        ("gpt2=-1", "weights >= 0"),
        ("gpt2=nan", "weights >= 0"),
        ("gpt2=0", "one above 0"),
        ({"gpt9": 1.0}, "no profile of 'gpt9'"),
        ({}, "weights"),
    ],
)
def test_bad_mixes(mix: str | dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        assign(workload(("", 1)), LIBRARY, mix=mix, seed=0)
    assert message in str(caught.value)


def test_bad_bands() -> None:
    for starts in ((), (2,), (1, 1), (1, 8, 4)):
        with pytest.raises(InputError, match="ascend from 1"):
            ModelMix("m", tuple(Band(k, {"a": 1}) for k in starts))


# --- the user's file ------------------------------------------------------------------------------


def write(folder: Path, **fields: object) -> str:
    path = folder / "own.json"
    path.write_text(json.dumps({"schema": SCHEMA, **fields}))
    return str(path)


def test_own_file_goes_first(tmp_path: Path) -> None:
    demands = [
        {"gpus": 1, "compute_s": 1.0, "traffic_bytes": 0},
        {"gpus": 8, "compute_s": 2, "traffic_bytes": 3},
    ]
    path = write(
        tmp_path,
        profiles=[{"name": "muri/gpt2", "demands": demands}, {"name": "mine/bert", "demands": demands}],
        aliases={"house-model": "mine/bert", "vgg16": "muri/vgg19"},
        mixes={"mine": {"about": "ours", "bands": [{"from_gpus": 1, "shares": {"mine/bert": 1}}]}},
    )
    library = load_library(path)
    assert len(library.names) == len(LIBRARY.names) + 1
    assert [library.find(m).demand(8).compute_s for m in ("gpt2", "bert", "House Model")] == [2, 2, 2]  # type: ignore[union-attr]
    assert library.find("vgg16").name == "muri/vgg19"  # type: ignore[union-attr]
    assert given(assign(workload(("", 8)), library, mix="mine", seed=0)) == ["mine/bert"]
    assert "default" in library.mixes


def test_own_profiles_and_aliases_go_before_what_others_call_so(tmp_path: Path) -> None:
    demands = [{"gpus": 8, "compute_s": 1.0, "traffic_bytes": 0}]
    path = write(
        tmp_path,
        profiles=[{"name": f"house/{model}", "demands": demands} for model in ("yolo", "gpt (batch size 4)")],
        aliases={"BERT": "house/yolo", "roberta": "house/yolo", "Neu-MF": "house/yolo"},
    )
    library, models = load_library(path), ("yolo", "GPT", "bert", "RoBERTa", "neumf")
    for source in ("", "pollux", "titan"):
        found = [library.find(model, source=source) for model in models]
        yolo, gpt = library.profiles[:2]
        assert found == [yolo, gpt, yolo, yolo, yolo]


def test_letters_of_any_script_tell_models_apart() -> None:
    library = ProfileLibrary([profile("house/模型A1"), profile("house/Größe-2")])
    assert library.find("模型 a1") is library.profiles[0]
    assert library.find("GRÖSSE_2") is library.profiles[1]
    assert [library.find(model) for model in ("编码A1", "a1", "Gre-2", "模型")] == [None] * 4


def test_the_example_in_the_docs_loads(tmp_path: Path) -> None:
    page = (ROOT / "docs/reference/profiles.md").read_text()
    path = tmp_path / "own.json"
    path.write_text(page.split("```json\n")[1].split("```")[0])
    assert given(assign(workload(("Ranker v2", 8)), load_library(str(path)), seed=0)) == ["house/ranker"]


GOOD = {"gpus": 1, "compute_s": 1.0, "traffic_bytes": 0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": "hemiola.profiles/2"}, "schema 'hemiola.profiles/2'"),
        ({"profile": []}, "unknown field"),
        ({"profiles": 5}, "Expected `array`, got `int`"),
        ({"profiles": [{"name": "a", "demands": None}]}, "Expected `array`, got `null`"),
        ({"profiles": [{"name": "a", "demands": [GOOD], "overlop": 0.1}]}, "unknown ['overlop']"),
        ({"profiles": [{"name": "a", "demands": [{**GOOD, "compute_ms": 3}]}]}, "unknown ['compute_ms']"),
        ({"profiles": [{"name": "a", "demands": []}]}, "has no demands"),
        ({"profiles": [{"name": "a", "demands": [{**GOOD, "compute_s": 0}]}]}, "compute_s > 0"),
        ({"profiles": [{"name": "a"}]}, "missing required field"),
        ({"profiles": [{"name": "a", "demands": [GOOD]}] * 2}, "named twice: a"),
        ({"aliases": {"a": "nowhere"}}, "alias 'a' names no profile"),
        (
            {"mixes": {"m": {"about": "", "bands": [{"from_gpus": 1, "shares": {"zz": 1}}]}}},
            "no profile of 'zz'",
        ),
    ],
)
def test_bad_files(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_library(write(tmp_path, **fields))
    assert message in str(caught.value)


def test_an_own_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = Path(write(tmp_path, aliases={"house-model": "muri/vgg19"}))
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert load_library(str(path)).find("house-model").name == "muri/vgg19"  # type: ignore[union-attr]


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_library(str(tmp_path / "none.json"))
    (tmp_path / "own.json").write_text("[1, 2")
    with pytest.raises(InputError, match=r"own\.json"):
        load_library(str(tmp_path / "own.json"))


def test_import_is_cheap() -> None:
    code = "import hemiola.cost.profiles, sys; print({'numba', 'scipy', 'plotly', 'rich'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


# --- the derivation -------------------------------------------------------------------------------


def test_law_and_ring_by_hand() -> None:
    made = Profile(name="x", demands=(Demand(1, 2.0, 0.0), Demand(4, 2.0, 6e9)), overlap=0.25)
    assert tool().ring(4) == 1.5 and tool().ring(1) == 0
    assert tool().scaled(6e9, 4, 8) == 7e9
    assert tool().iteration_s(made, 4, 2e9) == 2.0 + (3.0 - 0.5)
    assert tool().iteration_s(made, 4, 12e9) == 2.0
    assert tool().iteration_s(made, 4, 2e9, speed=0.5) == 4.0 + (3.0 - 1.0)


def test_longer_rings_follow_the_largest_measured() -> None:
    demands = tool().extended([Demand(8, 0.5, 7e9), Demand(1, 0.4, 0.0)])
    assert demands == (
        Demand(1, 0.4, 0.0), Demand(8, 0.5, 7e9), Demand(16, 0.5, 7.5e9), Demand(64, 0.5, 7.875e9),
        Demand(256, 0.5, 7.969e9),
    )  # fmt: skip
    assert tool().extended([Demand(1, 0.4, 0.0)]) == (Demand(1, 0.4, 0.0),)


def test_gavel_solves_the_law_for_two_placements() -> None:
    demand = tool().gavel_demand(8, 80.0, 20.0)
    made = Profile(name="x", demands=(demand,))
    assert tool().iteration_s(made, 8, 150e9) == pytest.approx(0.1)
    assert tool().iteration_s(made, 8, 1.25e9) == pytest.approx(0.4)
    assert tool().gavel_demand(8, 20.0, 80.0) == Demand(8, 0.4, 0.0)


def test_muri_hides_what_the_stages_have_too_much() -> None:
    rows = {
        1: {"t": 1.0, "compute": 0.9, "net": 0.0},
        8: {"t": 1.1, "compute": 0.9, "net": 0.1},
        16: {"t": 1.2, "compute": 1.0, "net": 0.5},
    }
    made = tool().muri_profile("x", rows)
    assert made.overlap == pytest.approx(0.3)
    assert [d.compute_s for d in made.demands[:3]] == [1.0, 1.0, 1.0]
    assert made.demand(16).traffic_bytes == 0.5 * 12.5e9
    assert made.demand(8).traffic_bytes == pytest.approx(0.5 * 12.5e9 * (7 / 8) / (15 / 16), rel=1e-3)


def test_placements_give_medians() -> None:
    point = tool().Point
    points = [point("x", k, 1, 1.0) for k in tool().COUNTS]
    points += [point("x", 4, hosts, 1.0 + sync, sync) for hosts, sync in ((2, 0.2), (2, 0.4), (4, 0.9))]
    demands = {d.gpus: d for d in tool().from_placements(points, 10.0)}
    assert demands[4] == Demand(4, 1.0, 4.0) and demands[8] == Demand(8, 1.0, 0.0)


def test_megatron_row_by_hand() -> None:
    made = {p.name: p for p in tool().megatron()}["megatron/gpt-1.7b"]
    parameters = 12 * 24 * 2304**2 + (51200 + 2048) * 2304
    assert made.demand(32).traffic_bytes == pytest.approx(2 * 31 / 32 * 2 * parameters, rel=1e-3)
    assert made.demand(32).compute_s == pytest.approx(3.5, rel=0.01)


@pytest.mark.shared_data
def test_shipped_file_is_what_the_measurements_give(shared: Path) -> None:
    file, sources = tool().derive(shared / "data")
    text = (ROOT / "src/hemiola/cost/data/profiles.json").read_text()
    assert tool().render(file) == text
    errors = {row.about: row.mean for row in tool().fits(sources)}
    assert errors["muri, several"] < 0.02 and errors["pollux, several"] < 0.07
    assert errors["titan, several"] < 0.01 and errors["gavel, several"] < 0.03
    by_sum, by_max = tool().stage_rules(shared / "data")
    assert (round(by_sum, 3), round(by_max, 3)) == (0.119, 0.236)
    page = (ROOT / "docs/reference/profiles.md").read_text()
    assert tool().fit_table(sources) in page and tool().sensitivity_table(file["profiles"]) in page
