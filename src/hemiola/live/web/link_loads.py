"""What the running jobs send over each link, as the cost model predicts it; and how fast they run beside each other.

The same model that the simulator runs on; how often a job that reports its iterations sends is known from there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from hemiola.live.web.snapshots import ViewPicture
from hemiola.core.decisions import Placement
from hemiola.core.topology import Topology
from hemiola.cost.contention import MaxMin
from hemiola.cost.iteration import IterationModel

__all__ = ["Loads", "Predictor", "Speed"]


class Speed(msgspec.Struct, frozen=True):
    """How fast a job runs: seconds per iteration, and over those of its best placement alone."""

    iteration_s: float
    slowdown: float


class Loads(msgspec.Struct, frozen=True):
    """Predictions for one picture.

    Attributes:
        sent: by link, each job's (index in the sequence, bytes/s).
        speeds: by index in the sequence, where the profile is known.
        unknown: jobs over several hosts without a profile.
    """

    sent: dict[int, list[tuple[int, float]]]
    speeds: dict[int, Speed]
    unknown: int


class Predictor:
    """The cost model of one topology, for any thread."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._model = IterationModel(topology)
        self._lock = threading.Lock()  # the model remembers what it worked out

    @property
    def names(self) -> list[str]:
        """Of the links."""
        return self._model.link_names

    @property
    def capacities_bytes_per_s(self) -> list[float]:
        """Of the links, each direction."""
        return [float(rate) for rate in self._model.capacities_bytes_per_s]

    def predict(self, running: Sequence[ViewPicture]) -> Loads:
        """Loads and speeds while these run together."""
        with self._lock:
            return self._predict(running)

    def _predict(self, running: Sequence[ViewPicture]) -> Loads:
        model, network = self._model, MaxMin().network(self._model.capacities_bytes_per_s)
        speeds: dict[int, Speed] = {}
        crossing, unknown = {}, 0
        for index, seen in enumerate(running):
            job, place = seen.job, seen.placement
            if not isinstance(place, Placement) or job.profile is None:
                unknown += isinstance(place, Placement) and len(place.hosts) > 1
                continue
            if len(place.hosts) == 1:
                iteration_s, _ = model.on_host(job, place.hosts[0], place.masks[0])
                speeds[index] = self._speed(seen, iteration_s)
                continue
            found = model.crossing(job, place)
            hidden_s = found.need.hidden_s - found.latency_s
            slot = network.add(
                compute_s=found.need.compute_s + max(0.0, -hidden_s), hidden_s=max(0.0, hidden_s),
                traffic_bytes=found.need.traffic_bytes, links=found.links, factors=found.factors,
            )  # fmt: skip
            crossing[slot] = index, found
        sent: dict[int, list[tuple[int, float]]] = {}
        for slot, iteration_s, _ in network.settle():
            index, found = crossing[slot]
            iteration_s = max(iteration_s, found.local_s)
            speeds[index] = self._speed(running[index], iteration_s)
            iteration_s = running[index].iteration_s or iteration_s
            if found.need.traffic_bytes:
                for link, factor in zip(found.links, found.factors or [1.0] * len(found.links), strict=True):
                    sent.setdefault(link, []).append((index, factor * found.need.traffic_bytes / iteration_s))
        return Loads(sent, speeds, unknown)

    def _speed(self, seen: ViewPicture, iteration_s: float) -> Speed:
        return Speed(iteration_s, iteration_s / self._model.alone(seen.job).best_s)
