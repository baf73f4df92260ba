"""Which of a prediction's collectives go by schedules, and what those need: large ones of a library that carries them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from hemiola.core.collective.schedule import FEWEST_BYTES
from hemiola.core.errors import InputError
from hemiola.core.hardware import Hardware
from hemiola.cost.collective.library import Cost, Library
from hemiola.cost.collective.price import FITTED, Fitting, schedule_cost
from hemiola.cost.parallelism import Parallelism, Transfer
from hemiola.cost.places import RankPlaces
from hemiola.cost.prediction.value import ScheduleUse

__all__ = ["Alike", "alike", "check_schedules", "costs_by_schedules", "schedule_uses"]

Alike = tuple[str, float, int, str]
"""What transfers have in common that need the same: collective, size, server, algorithm."""


def alike(transfer: Transfer) -> Alike:
    """Of one of them."""
    return transfer.collective, transfer.size_bytes, transfer.server, transfer.algorithm


def check_schedules(library: Library, parallelism: Parallelism) -> None:
    """Refuse schedules where nothing can go by them.

    Raises:
        InputError: a library that chooses by itself, or transfers that pause each other.
    """
    if parallelism.preemptive:
        raise InputError(
            f"collectives by schedules beside {parallelism.label}, whose transfers pause each other",
            "a plan has algorithms of its own: leave --schedules or --plan out",
        )
    if not library.by_schedules:
        raise InputError(
            f"collectives by schedules, and {library.name}, which chooses its own algorithms",
            "predict with Hemiola's process group (--library hemiola), or leave --schedules out",
        )


def costs_by_schedules(
    transfers: Iterable[Transfer], fitting: Fitting, place: RankPlaces, library: Library, hardware: Hardware
) -> dict[Alike, Cost]:
    """What those transfers need that go by schedules."""
    if place.ranks < 2:
        return {}
    choose, found = fitting(place), dict[Alike, Cost]()
    for key in dict.fromkeys(map(alike, transfers)):
        name, size_bytes, server, _ = key
        collective = next((one for one in FITTED if one == name), None)
        if collective is None or server >= 0 or size_bytes <= FEWEST_BYTES:
            continue
        schedule = choose(collective, size_bytes)
        if schedule is not None:
            found[key] = schedule_cost(schedule, size_bytes, place, library, hardware)
    return found


def schedule_uses(
    transfers: Iterable[Transfer],
    fitted: Mapping[Alike, Cost],
    usual: Callable[[Transfer], Cost],
    place: RankPlaces,
) -> tuple[ScheduleUse, ...]:
    """How each kind and size of collective goes, beside the usual way; of each kind the largest first.

    Args:
        fitted: what those need that go by schedules.
        usual: what one would need without them.
    """
    own = [transfer for transfer in transfers if transfer.server < 0]
    count, one_of = Counter(map(alike, own)), {alike(transfer): transfer for transfer in own}
    found = []
    for key in sorted(count, key=lambda key: (key[0], -key[1])):
        its, otherwise = fitted.get(key), usual(one_of[key])
        seconds = (its or otherwise).seconds(place)
        found.append(
            ScheduleUse(
                key[0], key[1], count[key], its.algorithm if its else "", seconds,
                otherwise.algorithm, otherwise.seconds(place),
            )
        )  # fmt: skip
    return tuple(found)
