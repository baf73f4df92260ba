"""The instructions that go with the files for NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hemiola.core.units import format_bytes, format_duration

if TYPE_CHECKING:
    from hemiola.plan.collective.nccl_files import NcclAdvice

__all__ = ["readme"]


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

3. The strategy (strategy.xml, strategy.json)

{_strategy(advice)}
"""


def _channels(advice: NcclAdvice) -> str:
    count = 1 + max((move.channel for move in advice.equal.strategy.moves), default=0)
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


def _strategy(advice: NcclAdvice) -> str:
    found, chosen = advice.found, advice.found.chosen
    if not advice.xml:
        return (
            f"An all-reduce of {format_bytes(found.size_bytes)} takes {format_duration(chosen.seconds)} by a ring, and nothing that "
            "was tried is over a tenth faster:\nNCCL has the ring itself, and there are no such files."
        )
    lines = [
        f"An all-reduce of {format_bytes(found.size_bytes)} by {chosen.strategy.name} takes {format_duration(chosen.seconds)}; no "
        f"strategy takes less than {format_duration(found.bounds.seconds)}."
    ]
    if advice.equal.excess:
        lines.append(
            f"MSCCL's chunks are equal: shares were rounded to {advice.equal.strategy.chunks} of them, which takes "
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
divided by {advice.equal.strategy.chunks} (its chunks), and the result lies where the input did (PyTorch's all_reduce); all else goes NCCL's way.
It uses {_channels(advice)}; where links are so fast that NCCL needs more of them, NCCL is faster.
Hemiola's own process group takes the JSON: HEMIOLA_STRATEGY=strategy.json."""
