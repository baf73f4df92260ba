"""A job of Ray's as policies see it: what its user says of it when it is submitted.

ray job submit --metadata-json '{"hemiola": "gpus=16 hosts=2 model=resnet50 runtime=2h required=rack"}' ...
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hemiola.core.job import Batch, Profile, batch_job
from hemiola.live.engines.ray.kv_store import ALONE, group_name
from hemiola.live.engines.ray.snapshot import RaySnapshot
from hemiola.live.engines.ray.tracked_job import RayTrackedJob
from hemiola.live.engines.ray.wire import RayJobRow
from hemiola.live.job_labels import KEYS, read_words

__all__ = ["Wish", "job_of", "take_up", "wish_of"]


RAY_KEYS = ("gpus", "hosts", "min_gpus", "max_gpus", "cpus", "gpu_type", "user", "requeue", *KEYS)
MOST_GPUS = 100_000


class Wish(msgspec.Struct, frozen=True):
    """What of a job Ray has to know.

    Attributes:
        gpus: in all.
        hosts: equally many on each of so many; 0 for any.
        cpus: beside each GPU.
        min_gpus, max_gpus: as few and as many as an elastic job may have; 0 for `gpus`.
        gpu_type: of its GPUs; "" for any.
        problem: why it cannot be placed; "" if it can.
    """

    gpus: int = 0
    hosts: int = 0
    cpus: int = 1
    min_gpus: int = 0
    max_gpus: int = 0
    gpu_type: str = ""
    problem: str = ""


def wish_of(words: str) -> Wish:
    """What was said; a number that is none is a problem, and nothing is guessed."""
    said = dict(word.partition("=")[::2] for word in words.split())
    numbers = {"gpus": 0, "hosts": 0, "cpus": 1, "min_gpus": 0, "max_gpus": 0}
    for key in numbers.keys() & said.keys():
        value = said[key]
        least = 0 if key == "cpus" else 1
        if not (value.isascii() and value.isdigit() and least <= int(value) <= MOST_GPUS):
            return Wish(problem=f"its metadata says {key}={value[:40]!r}: write a number from {least}")
        numbers[key] = int(value)
    if not numbers["gpus"]:
        return Wish(problem="its metadata does not say how many GPUs it wants: write gpus=8")
    if numbers["hosts"] and numbers["gpus"] % numbers["hosts"]:
        return Wish(
            problem=f"its metadata wants {numbers['gpus']} GPUs on {numbers['hosts']} hosts, equally many on each"
        )
    if said.get("requeue", "yes") not in ("yes", "no"):
        return Wish(problem=f"its metadata says requeue={said['requeue'][:40]!r}: write yes or no")
    wish = Wish(**numbers, gpu_type=said.get("gpu_type", ""))  # type: ignore[arg-type]
    if flaw := _flaw(wish):
        return Wish(problem=f"its metadata: {flaw}; write min_gpus and max_gpus that fit")
    return wish


def _flaw(wish: Wish) -> str:
    """Why a job cannot have these sizes; "" if it can."""
    return batch_job(
        id="", submit_s=0.0, duration_s=0.0,
        gpus=wish.gpus, hosts=wish.hosts, gpus_min=wish.min_gpus, gpus_max=wish.max_gpus,
    ).flaw()  # fmt: skip


def job_of(row: RayJobRow, uuid: str, usual_s: float, profile: Callable[[str], Profile]) -> tuple[Batch, str]:
    """The job, and what of its metadata was not understood.

    Args:
        usual_s: how long a job is taken to run that says nothing.
        profile: of a model by its name.
    """
    wish, said = wish_of(row.words), read_words(row.words.split(), "its metadata", profile, RAY_KEYS)
    words = said.words
    job = batch_job(
        id=uuid, submit_s=row.start_ms / 1000, gpus=max(1, wish.gpus), hosts=wish.hosts, gpus_min=wish.min_gpus,
        gpus_max=wish.max_gpus, duration_s=said.runtime_s or usual_s, profile=said.profile, model=words.get("model", ""),
        user=words.get("user", ""), queue="ray", gpu_type=words.get("gpu_type", ""),
        required=words.get("required", ""), preferred=words.get("preferred", ""), estimate_s=said.runtime_s,
        pinned=words.get("requeue") == "no",
    )  # fmt: skip
    return job, "; ".join([wish.problem] * bool(wish.problem) + said.problems)


# A job that is new to this run: what it has already.


def take_up(known: RayTrackedJob, look: RaySnapshot, now_s: float) -> None:
    """Note the place that its wrapper was told of, if that stands, or one that Ray gave it.

    Where either is outside the topology, its command goes on, and nobody tells it anything.
    """
    row, wrapper, place = known.row, look.wrappers[known.row.id], look.places.get(known.row.id)
    numbers = [group.number for group in look.groups.values() if group.job == row.id]
    told = place if place is not None and place.token == wrapper.token else None
    known.number = max([*numbers, wrapper.number, told.number if told else 0])
    alone = group_name(row.id, ALONE)
    if told is not None and told.group and (placement := look.placement(told.group)) is not None:
        known.group, known.wanted, known.bound_s = told.group, placement, now_s
        known.ran = wrapper.state == "runs" and wrapper.number == told.number
    elif wrapper.state == "runs" and wrapper.number == ALONE and (placement := look.placement(alone)):
        known.group, known.wanted, known.bound_s, known.ran = alone, placement, now_s, True
    else:
        is_there = (
            wrapper.state == "runs" and told is not None and wrapper.number == told.number
            and not look.is_lost(told.group)
        )  # fmt: skip
        known.untold = told is not None and bool(told.group) and not is_there
        # where Ray has put it, it goes on, and is taken up there once it is seen to stand
        stays = wrapper.state == "waits" or is_there or (wrapper.state == "runs" and wrapper.number == ALONE)
        known.left_s = None if stays else now_s
