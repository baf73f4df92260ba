"""What users of NCCL take along: the order of ranks, settings of the tuner plugin, a schedule as XML, and how to use them.

Only texts are made here, by their file's name. NCCL's side was read in its sources (2.27 to 2.30), MSCCL's in RCCL's and
in microsoft/msccl's README; nothing of it was run on a GPU, and the texts say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hemiola.core.collective.schedule import Collective
from hemiola.core.errors import InputError
from hemiola.core.topology import Topology
from hemiola.core.units import format_bytes, format_duration
from hemiola.cost.collective.duration import schedule_seconds
from hemiola.cost.places import RankPlaces, place_ranks
from hemiola.plan.collective.nccl import (
    GAIN,
    Choice,
    NcclOrder,
    NcclTimes,
    Range,
    nccl_choices,
    nccl_order,
    reordered,
)
from hemiola.plan.collective.synthesis import Synthesis, synthesise
from hemiola.trace.msccl import Equal, beyond_limits, equal_chunks, msccl_text

__all__ = ["NAMES", "NcclAdvice", "advise_nccl"]


NAMES = ("README.txt", "hosts.txt", "hostfile", "slurm-hostfile", "tuner.csv", "nccl.env", "strategy.xml")
_LARGEST = (1 << 63) - 1
_SMALLER = 4
"""A schedule is used for collectives down to this part of what it was made for."""


@dataclass(frozen=True)
class NcclAdvice:
    """All that was found.

    Attributes:
        place: with hosts in the new order, along which ranks are numbered.
        order: how it was found.
        ranges: for which sizes another choice than NCCL's own is better.
        found: the schedule, on `place`: without paces, which XML does not have.
        equal: the same with equal chunks, as XML has it.
        equal_s: what it takes then.
        xml: the document; "" where the schedule is the ring, which NCCL has itself.
        beyond: which limits of MSCCL it exceeds.
    """

    place: RankPlaces
    order: NcclOrder
    ranges: tuple[Range, ...]
    found: Synthesis
    equal: Equal
    equal_s: float
    xml: str
    beyond: tuple[str, ...]

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """In order: their names, and how many ranks they have."""
        names = self.place.topology.hosts.names
        return [(names[host], count) for host, count in self.place.counts]

    @property
    def bytes_min(self) -> int:
        """Of the collectives that go by the XML: MSCCL leaves smaller ones to NCCL."""
        return int(self.found.size_bytes) // _SMALLER

    @property
    def rounding_loss(self) -> float:
        """The share by which equal chunks make the schedule slower."""
        return self.equal_s / self.found.chosen.seconds - 1 if self.found.chosen.seconds else 0.0

    def files(self) -> dict[str, str]:
        """Texts by file name: of `NAMES`, all but the last where there is no XML."""
        hosts = self.hosts
        texts = (
            readme(self),
            ",".join(name for name, _ in hosts) + "\n",
            "".join(f"{name} slots={count}\n" for name, count in hosts),
            "".join(f"{name}\n" * count for name, count in hosts),
            tuner_csv(self.ranges, len(hosts), self.place.ranks),
            environment(self.order),
            self.xml,
        )
        return {name: text for name, text in zip(NAMES, texts, strict=True) if text}


def advise_nccl(
    topology: Topology, ranks: int, size_bytes: float, collective: Collective = "all-reduce", *,
    placement: tuple[int, ...] | None = None,
) -> NcclAdvice:  # fmt: skip
    """For these ranks and collectives of about this size.

    Raises:
        InputError: ranks that cannot be placed, one rank, or a link without bandwidth.
        ScheduleError: an all-to-all.
    """
    before = place_ranks(topology, ranks, placement)
    if ranks < 2:
        raise InputError("one rank has nobody to send to", "give two ranks or more")
    order = nccl_order(before, size_bytes)
    place = reordered(before, order.order)
    found = synthesise(place, size_bytes, collective, paces=False)
    equal = equal_chunks(found.chosen.schedule)
    seconds = found.chosen.seconds
    if equal.excess:
        seconds = schedule_seconds(equal.schedule, size_bytes, place)
    usual = found.chosen is found.usual
    xml = "" if usual else msccl_text(equal.schedule, int(size_bytes) // _SMALLER)
    ranges = tuple(nccl_choices(NcclTimes(place)))
    return NcclAdvice(
        place, order, ranges, found, equal, seconds, xml, tuple(beyond_limits(xml)) if xml else ()
    )


def tuner_csv(ranges: Sequence[Range], nodes: int, ranks: int) -> str:
    """The configuration of NCCL's example tuner plugin: the first line that fits, and that NCCL can do, is taken."""
    lines = [
        "# Written by hemiola collective --nccl. For NCCL's example tuner plugin; README.txt says how it has to be built.",
        "# collective,least bytes,most bytes,algorithm,protocol,channels (-1: NCCL's),nodes,ranks,operations,registered",
    ]
    if not ranges:
        lines.append(
            "# Nothing is over a tenth faster than what NCCL may choose by itself: no line is needed."
        )
    for one in ranges:
        lines.append(f"# {format_bytes(max(one.least_bytes, 1024))}: {_gain(one.best, one.usual)}")
        for choice in (one.best, one.instead):
            if choice:
                most = _LARGEST if one.most_bytes is None else one.most_bytes
                lines.append(
                    f"allreduce,{one.least_bytes},{most},{choice.algorithm},{choice.protocol},-1,{nodes},{ranks},-1,-1"
                )
    return "\n".join(lines) + "\n"


def environment(order: NcclOrder) -> str:
    """Variables for NCCL."""
    lines = [
        "# Written by hemiola collective --nccl. With the tuner plugin, give paths that all hosts have:",
        "#NCCL_TUNER_PLUGIN=/path/libnccl-tuner-example.so",
        "#NCCL_TUNER_CONFIG_FILE=/path/tuner.csv",
    ]
    if (
        order.usual.seconds <= (1 + GAIN) * order.best.seconds
        or order.best.algorithm == order.usual.algorithm
    ):
        lines.append("# Without it: nothing. NCCL's own choice between ring and tree is as good here.")
    else:
        lines += [
            "# Without it, for all-reduces of every size (NCCL 2.24 and later; before, NCCL_ALGO=Ring or Tree holds for all",
            f"# collectives). {format_bytes(order.size_bytes)}: {_gain(order.best, order.usual)}",
            f"NCCL_ALGO=allreduce:{order.best.algorithm}",
        ]
    return "\n".join(lines) + "\n"


def _gain(best: Choice, usual: Choice) -> str:
    return f"{best} {format_duration(best.seconds)} predicted, instead of {usual} {format_duration(usual.seconds)}"


# The instructions that go with the files for NCCL.


def readme(advice: NcclAdvice) -> str:
    """As text, with what was found in it."""
    hosts = advice.hosts
    each = str(hosts[0][1])
    run = f'hemiola run --hosts "$(cat hosts.txt)" --nproc {each} train.py'
    if len({count for _, count in hosts}) > 1:
        each = '$(sed -nE "s/^($(hostname)|$(hostname -s)) slots=//p" hostfile)'
        run = "(hemiola run starts equally many ranks on all hosts; these are to have as many as hostfile says.)"
    return f"""\
NCCL on {advice.place.topology.name}: {advice.place.ranks} ranks on {len(hosts)} hosts

Times are predicted: by the topology's rates and NCCL's own latencies, without its correction tables, so that its choice
is a guess where two are close. None of this was run on GPUs by those who wrote it: NCCL's and MSCCL's side was read in
their sources. Measure with nccl-tests' all_reduce_perf, before and after.

1. The order of ranks (hosts.txt, hostfile, slurm-hostfile)

NCCL's rings and trees go through hosts in the order of their ranks. Ranks are to be numbered in this one:

  {_wrapped([name for name, _ in hosts])}

{_orders(advice)}

Start the job so that the first host of the list has the first ranks:

  {run}
  torchrun, on each host; with --rdzv-backend c10d it would number hosts by their names instead, n10 before n2:
    torchrun --nnodes {len(hosts)} --nproc-per-node {each} --master-addr {hosts[0][0]} --master-port 29500 \\
      --node-rank $(($(tr ',' '\\n' < hosts.txt | grep -nxF -e "$(hostname)" -e "$(hostname -s)" | cut -d: -f1) - 1)) train.py
  Open MPI, outside of a resource manager:
    mpirun --hostfile hostfile --map-by slot -n {advice.place.ranks} python train.py
  Slurm, which sorts hosts by their names otherwise, n2 before n10:
    SLURM_HOSTFILE=$PWD/slurm-hostfile srun --distribution=arbitrary -n {advice.place.ranks} python train.py

2. Ring or tree (tuner.csv, nccl.env)

NCCL chooses by the hardware that each host reports, not by what links give.
{_tuned(advice)}

tuner.csv is for the example tuner plugin in NCCL's sources (ext-tuner/example), where that has a nccl_tuner.conf with
these columns; RCCL's newest sources read such a file too. The plugin allows 1 channel wherever a line says -1, and for
everything that no line is about: have it leave that to NCCL (0) before you build it.

  cd nccl/ext-tuner/example && sed -i 's/\\*nChannels = 1;/*nChannels = 0;/' plugin.c && make
  export NCCL_TUNER_PLUGIN=$PWD/libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=/path/tuner.csv
  NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING shows what was chosen.

A line with a protocol that NCCL cannot use there is passed over. nccl.env does it without the plugin, for all sizes at
once. It leaves protocols and channels to NCCL: NVIDIA advises against NCCL_PROTO, and what links give says nothing of
NCCL_MIN_NCHANNELS.

3. The schedule (strategy.xml, strategy.json)

{_schedule(advice)}
"""


def _channels(advice: NcclAdvice) -> str:
    count = 1 + max((move.channel for move in advice.equal.schedule.moves), default=0)
    return f"{count} channel{'s' * (count > 1)}"


def _wrapped(names: list[str]) -> str:
    return (
        ", ".join(names) if len(names) <= 32 else f"{', '.join(names[:32])}, ... ({len(names)} in hosts.txt)"
    )


def _orders(advice: NcclAdvice) -> str:
    order = advice.order
    rows = [
        ("in this order", order.usual, order.best),
        *((name, usual, best) for name, (usual, best) in order.others.items()),
    ]
    lines = [
        f"An all-reduce of {format_bytes(order.size_bytes)} takes",
        *(
            f"  {name + ':':<28} {format_duration(usual.seconds):>10} as NCCL may choose ({usual}), "
            f"{format_duration(best.seconds):>10} at best ({best})"
            for name, usual, best in rows
        ),
    ]
    return "\n".join(lines)


def _tuned(advice: NcclAdvice) -> str:
    if not advice.ranges:
        return "On this network nothing else is predicted to be over a tenth faster: leave it alone."
    return "On this network another choice is predicted to be faster:\n" + "\n".join(
        f"  from {format_bytes(max(one.least_bytes, 1024))}: {one.best}, {format_duration(one.best.seconds)} instead of "
        f"{format_duration(one.usual.seconds)} with {one.usual}"
        for one in advice.ranges
    )


def _schedule(advice: NcclAdvice) -> str:
    found, chosen = advice.found, advice.found.chosen
    if not advice.xml:
        return (
            f"An all-reduce of {format_bytes(found.size_bytes)} takes {format_duration(chosen.seconds)} by a ring, and nothing that "
            "was tried is over a tenth faster:\nNCCL has the ring itself, and there are no such files."
        )
    lines = [
        f"An all-reduce of {format_bytes(found.size_bytes)} by {chosen.schedule.name} takes {format_duration(chosen.seconds)}; no "
        f"schedule takes less than {format_duration(found.bounds.seconds)}."
    ]
    if advice.equal.excess:
        lines.append(
            f"MSCCL's chunks are equal: shares were rounded to {advice.equal.schedule.chunks} of them, which takes "
            f"{format_duration(advice.equal_s)} ({advice.rounding_loss:+.1%})."
        )
    lines += [f"Beware: it has {one}." for one in advice.beyond]
    return "\n".join(lines) + _readers(advice)


def _readers(advice: NcclAdvice) -> str:
    return f"""

NCCL itself does not read such files. These do, or did:
  RCCL with MSCCL: added in December 2022, left out of later builds, and removed in March 2026. It takes every
    file of a folder for such a one: put strategy.xml into one of its own, MSCCL_ALGO_DIR=/path/folder
    RCCL_MSCCL_FORCE_ENABLE=1, one process for each GPU. Its log says "Using MSCCL files from"; else it has no MSCCL.
  Azure/msccl (executor msccl-executor-nccl, NVIDIA): copy the file to msccl-algorithms beside its libnccl.so.
  microsoft/msccl (the first one, NVIDIA): MSCCL_XML_FILES=/path/strategy.xml NCCL_ALGO=MSCCL,RING,TREE
  MSCCL++ has another format (JSON) and does not read it.
MSCCL goes by it in groups of {advice.place.ranks} ranks, for {format_bytes(advice.bytes_min)} and more, where the number of elements can be
divided by {advice.equal.schedule.chunks} (its chunks), and the result lies where the input did (PyTorch's all_reduce); all else goes NCCL's way.
It uses {_channels(advice)}; where links are so fast that NCCL needs more of them, NCCL is faster.
Hemiola's own process group takes the JSON: HEMIOLA_STRATEGY=strategy.json."""
