"""What Ray's users say of their jobs, and what Ray says: read strictly, and nothing is guessed."""

from __future__ import annotations

import msgspec
import pytest

from hemiola.control.live.remembered import Remembered
from hemiola.control.ray.board import Place
from hemiola.control.ray.hold import job_around
from hemiola.control.ray.jobs import Wish, job_of, wish_of
from hemiola.control.ray.looks import Look
from hemiola.control.ray.memory import Clues
from hemiola.control.ray.rows import GroupRow, JobRow, read_answer
from hemiola.core.decisions import Placement
from hemiola.core.errors import EngineError, InputError
from hemiola.core.job import Profile

NONE = b'{"groups": [], "notes": {}, "jobs": [], "nodes": []}'


def row(words: str, start_ms: int = 5000) -> JobRow:
    return JobRow("raysubmit_1", "RUNNING", start_ms, None, words)


def no_profile(model: str) -> Profile:
    raise InputError(f"no profile has the model {model!r}", "")


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        ("gpus=16", Wish(16, 0, 1)),
        ("gpus=16 hosts=2 cpus=0 model=x", Wish(16, 2, 0)),
        ("gpus=8 requeue=no", Wish(8, 0, 1)),
    ],
)
def test_wishes_are_read(words: str, wish: Wish):
    assert wish_of(words) == wish


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "does not say how many GPUs"),
        ("hosts=2", "does not say how many GPUs"),
        ("gpus=0", "gpus='0': write a number from 1"),
        ("gpus=-1", "gpus='-1'"),
        ("gpus=²", "gpus='²'"),
        ("gpus=1e3", "gpus='1e3'"),
        ("gpus=99999999", "gpus='99999999'"),
        ("gpus=7 hosts=2", "7 GPUs on 2 hosts, equally many on each"),
        ("gpus=8 cpus=many", "cpus='many': write a number from 0"),
        ("gpus=8 requeue=never", "write yes or no"),
    ],
)
def test_wishes_that_cannot_be_are_problems(words: str, problem: str):
    assert problem in wish_of(words).problem


def test_a_job_has_what_its_user_said():
    said = "gpus=16 hosts=2 gpu_type=a100 required=rack preferred=host runtime=2h user=eve requeue=no"
    job, note = job_of(row(said), "uuid", 60.0, no_profile)
    assert (job.gpus, job.hosts, job.gpu_type, job.user, job.pinned) == (16, 2, "a100", "eve", True)
    assert (job.required, job.preferred, job.duration_s, job.submit_s) == ("rack", "host", 7200.0, 5.0)
    assert note == ""


def test_words_that_are_not_understood_are_told_and_left_out():
    job, note = job_of(row("gpus=8 colour=red model=unheard-of runtime=long"), "uuid", 60.0, no_profile)
    assert job.duration_s == 60.0 and job.profile is None
    assert "its metadata says 'colour=red': write one of gpus, hosts" in note and "'long'" in note


def test_an_answer_that_cannot_be_is_refused_as_a_whole():
    assert read_answer(msgspec.Raw(NONE)).jobs == ()
    for wrong in (
        b'[["a; rm -rf /", "RUNNING", 1, null, "gpus=1"]]',
        b'[{"id": "a b", "status": "RUNNING", "start_ms": 1, "exit_code": null, "words": "gpus=1"}]',
        b'[{"id": "a", "status": "DREAMING", "start_ms": 1, "exit_code": null, "words": "gpus=1"}]',
    ):
        with pytest.raises(EngineError, match="not understood"):
            read_answer(msgspec.Raw(NONE.replace(b'"jobs": []', b'"jobs": ' + wrong)))


def test_a_group_is_where_its_bundles_are_in_their_order():
    group = GroupRow("hemiola:j:1", "CREATED", "ab" * 18, ("cc" * 8, "cc" * 8, "aa" * 8))
    look = Look({}, {}, {}, {group.name: group}, ["aa" * 8, "", "cc" * 8], {})
    assert look.placement(group.name) == Placement((2, 0), (0b11, 0b1))
    elsewhere = GroupRow("hemiola:j:2", "CREATED", "ab" * 18, ("dd" * 8,))
    pending = GroupRow("hemiola:j:3", "PENDING", "ab" * 18, ("",))
    look.groups.update({elsewhere.name: elsewhere, pending.name: pending})
    assert [look.placement(name) for name in (elsewhere.name, pending.name, "none")] == [None] * 3


def test_an_id_that_is_used_again_is_another_job():
    memory = Remembered(uuid="u", engine_id="raysubmit_1", clues=Clues(5000), running=True, since_s=10.0)
    assert memory.clues.is_same(row("gpus=1")) and not memory.clues.is_same(row("gpus=1", start_ms=6000))
    assert memory.history(15.0, running=True)["since_s"] == 10.0
    assert memory.history(15.0, running=False)["served_s"] == 5.0


def test_the_wrapper_finds_its_job_and_says_what_is_missing():
    around = {
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"metadata": {"job_submission_id": "j", "hemiola": "gpus=2"}}',
    }
    assert job_around(around) == ("10.0.0.1:6379", "j", Wish(2))
    with pytest.raises(InputError, match="no Ray job"):
        job_around({})
    for metadata, problem in (
        ('{"job_submission_id": "j"}', "says nothing for Hemiola"),
        ('{"job_submission_id": "j", "hemiola": "gpus=two"}', "write a number from 1"),
        ('{"job_submission_id": "j k", "hemiola": "gpus=2"}', "other signs"),
    ):
        with pytest.raises(InputError, match=problem):
            job_around({**around, "RAY_JOB_CONFIG_JSON_ENV_VAR": f'{{"metadata": {metadata}}}'})


def test_a_place_survives_being_written():
    place = Place(token="t", number=3, group="hemiola:j:3", group_id="ab", nodes=("h0", "h1"))
    assert msgspec.json.decode(msgspec.json.encode(place), type=Place) == place
