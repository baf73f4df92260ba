"""Derives the shipped job profiles from published measurements, and says how well they fit.

    python tools/derive_profiles.py DATA [--output FILE] [--tables]

DATA holds `profiles/{muri,pollux,gavel,titan,tiresias}` as their authors published them. The same
files give the same output, byte for byte. Everything rests on one law, with K ranks on links of
rate r [bytes/s] and ring traffic V = 2 (K-1)/K S per link and direction for S bytes of gradients:

    T = C + max(0, V / r - overlap * C)                                                      (law)

What a testbed calls a second of communication at rate B becomes V = seconds * B *effective* bytes:
protocol, start-up and straggling are folded into them. `docs/reference/profiles.md` discusses this.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hemiola.core.job import Demand, Profile
from hemiola.cost.profiles import SCHEMA

SHIPPED = Path(__file__).parents[1] / "src/hemiola/cost/data/profiles.json"
GBIT = 0.125e9
NVLINK = 150e9  # one direction of a V100's six links
MEBI = 2.0**20

#: Rate of one host's network [bytes/s]. Pollux names its instance (g4dn.12xlarge, 50 Gbit/s); the
#: others publish none, so it is the least customary rate that could carry the gradients in the time.
NETWORK = {"muri": 100 * GBIT, "pollux": 50 * GBIT, "gavel": 10 * GBIT, "titan": 200 * GBIT}

#: Seconds to stop a job and have it run elsewhere, where its source measured none per model.
SWITCH_S = {"muri": 30.0, "pollux": 30.0, "gavel": 20.0, "tiresias": 62.0}

#: Local batch size: the one that the source's own workloads use most.
POLLUX_BATCH = {"bert": 12, "cifar10": 129, "deepspeech2": 20, "imagenet": 200, "ncf": 257, "yolov3": 16}
TITAN_BATCH = {"roberta-base": 16, "roberta-large": 16, "vit": 64, "vit-large": 64}
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
LARGER = (16, 64, 256)

#: Forward GFLOP per image (torchvision's weight tables; Inception-v4: Bianco et al. 2018, table 1).
GFLOP = {
    "alexnet": 0.71, "vgg11": 7.61, "vgg16": 15.47, "resnet50": 4.09, "resnet101": 7.80,
    "resnet152": 11.51, "inception3": 5.71, "inception4": 12.3,
}  # fmt: skip

#: Narayanan et al., SC'21 (arXiv 2104.04473), table 1: layers, hidden size, tensor-parallel ranks,
#: GPUs, batch, FLOP/s per GPU; sequence 2048, vocabulary 51200, DGX A100 with 8 x 200 Gbit/s.
MEGATRON = {
    "gpt-1.7b": (24, 2304, 1, 32, 512, 137e12),
    "gpt-7.5b": (36, 4096, 4, 128, 512, 142e12),
}


@dataclass(frozen=True)
class Point:
    """One measured placement: iteration time, and its communication where that was measured."""

    profile: str
    gpus: int
    hosts: int
    iteration_s: float
    sync_s: float = 0.0
    speed: float = 1.0


@dataclass(frozen=True)
class Fit:
    """Relative errors of predicted iteration times over the measured placements of one source."""

    about: str
    placements: int
    mean: float
    largest: float
    where: str


Derived = tuple[list[Profile], list[Point]]


def ring(gpus: int) -> float:
    """Bytes per link and direction that a ring all-reduce of one byte carries: 2 (K-1)/K."""
    return 2 * (gpus - 1) / gpus


def scaled(traffic_bytes: float, measured: int, gpus: int) -> float:
    """The traffic of `gpus` ranks, from that of `measured` ranks, at the same payload on a ring."""
    return traffic_bytes * ring(gpus) / ring(measured)


def iteration_s(profile: Profile, gpus: int, rate: float, speed: float = 1.0) -> float:
    """The law, on links of `rate` bytes/s and GPUs of relative `speed`."""
    demand = profile.demand(gpus)
    compute_s = demand.compute_s / speed
    return compute_s + max(0.0, demand.traffic_bytes / rate - profile.overlap * compute_s)


def extended(demands: Iterable[Demand]) -> tuple[Demand, ...]:
    """Add larger numbers of GPUs: the compute of the largest measured, its traffic on a longer ring."""
    known = sorted(demands, key=lambda d: d.gpus)
    last = known[-1]
    more = [k for k in LARGER if k > last.gpus > 1]
    longer = [Demand(k, last.compute_s, scaled(last.traffic_bytes, last.gpus, k)) for k in more]
    return tuple(rounded(d) for d in known + longer)


def rounded(demand: Demand) -> Demand:
    """Four digits: no measurement here repeats better than that."""
    return Demand(demand.gpus, four(demand.compute_s), four(demand.traffic_bytes))


def four(value: float) -> float:
    """The number to four significant digits."""
    return float(f"{value:.4g}")


def half(switch_s: float) -> float:
    """What saving costs, and what restoring costs: the sources give only the sum."""
    return four(switch_s / 2)


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- Muri ---------------------------------------------------------------------------------------


def muri(data: Path) -> Derived:
    """Stage times at 1..32 V100 in hosts of 8 (Zhao et al., SIGCOMM'22).

    The iteration T lies between max and sum of the stages: storage and GPU are pipelined, the
    network partly. So C = max(storage, GPU, T - network), what is hidden is h = C + network - T,
    and overlap is the least-squares fit of h = overlap * C over the placements on several hosts.
    V = network * B there; on one host the ring scaling of the next larger measured count.
    """
    by_model: dict[str, dict[int, dict[str, float]]] = {}
    for row in table(data / "profiles/muri/model_stage_times_ms.csv"):
        stages = [float(row[f"resource_time_{i}_ms"]) / 1e3 for i in range(3)]
        values = {"t": float(row["iteration_time_ms"]) / 1e3, "compute": max(stages[:2]), "net": stages[2]}
        by_model.setdefault(row["model"], {})[int(row["num_gpu"])] = values
    drop = by_model["resnet18"][32]  # stages sum to an eighth of the iteration: a slip of the pen
    drop["net"] = by_model["resnet18"][16]["net"] * ring(32) / ring(16)
    profiles = [muri_profile(model, rows) for model, rows in by_model.items()]
    points = [
        Point(f"muri/{model}", k, -(-k // 8), row["t"], row["net"])
        for model, rows in by_model.items()
        for k, row in rows.items()
    ]
    return profiles, points


def stage_rules(data: Path) -> tuple[float, float]:
    """Mean relative error of Muri's iteration as the sum of its stages, and as the longest of them."""
    sums, longest = [], []
    for row in table(data / "profiles/muri/model_stage_times_ms.csv"):
        if (row["model"], row["num_gpu"]) == ("resnet18", "32"):
            continue
        stages = [float(row[f"resource_time_{i}_ms"]) for i in range(3)]
        sums.append(abs(sum(stages) / float(row["iteration_time_ms"]) - 1))
        longest.append(abs(max(stages) / float(row["iteration_time_ms"]) - 1))
    return statistics.fmean(sums), statistics.fmean(longest)


def muri_profile(model: str, rows: dict[int, dict[str, float]]) -> Profile:
    """One of Muri's eight models."""
    compute = {k: max(r["compute"] if k > 1 else 0.0, r["t"] - r["net"]) for k, r in rows.items()}
    wide = [k for k in rows if k > 8]
    hidden = {k: compute[k] + rows[k]["net"] - rows[k]["t"] for k in wide}
    overlap = sum(hidden[k] * compute[k] for k in wide) / sum(compute[k] ** 2 for k in wide)
    first = min(wide)
    traffic = {k: rows[k]["net"] * NETWORK["muri"] for k in wide}
    return Profile(
        name=f"muri/{model}",
        demands=extended(
            Demand(k, compute[k], traffic.get(k, scaled(traffic[first], first, k))) for k in sorted(rows)
        ),
        overlap=four(overlap),
        checkpoint_s=half(SWITCH_S["muri"]),
        restore_s=half(SWITCH_S["muri"]),
        gpu_speed={"V100": 1.0},
        gpu_type="V100",
        source="Muri (SIGCOMM'22) stage times, hosts of 8 V100, 100 Gbit/s assumed; switch 30 s as Pollux",
    )


# --- Pollux and Titan: step and sync by placement ----------------------------------------------------


def placements(path: Path, name: str, batch: int) -> list[Point]:
    """Measured placements ("44" is two hosts of four GPUs) at one local batch size."""
    return [
        Point(
            name, sum(map(int, r["placement"])), len(r["placement"]),
            float(r["step_time"]), float(r["sync_time"]),
        )
        for r in table(path)
        if int(r["local_bsz"]) == batch
    ]  # fmt: skip


def from_placements(points: list[Point], network: float) -> tuple[Demand, ...]:
    """C = median(step - sync) and V = median(sync on several hosts) * B, by number of GPUs."""
    demands = []
    for k in COUNTS:
        same = [p for p in points if p.gpus == k]
        wide = [p.sync_s for p in same if p.hosts > 1]
        compute_s = statistics.median(p.iteration_s - p.sync_s * (k > 1) for p in same)
        demands.append(Demand(k, compute_s, statistics.median(wide) * network if wide else 0.0))
    return extended(demands)


def pollux(data: Path) -> Derived:
    """Step and sync times on AWS g4dn.12xlarge: 4 T4 a host, 50 Gbit/s (Qiao et al., OSDI'21).

    `sync` is what the step takes longer than its gradients do: already exposed, so overlap = 0.
    """
    profiles, points = [], []
    for model, batch in POLLUX_BATCH.items():
        name = f"pollux/{model}"
        mine = placements(data / f"profiles/pollux/{model}/placements.csv", name, batch)
        points += mine
        profile = Profile(
            name=name,
            demands=from_placements(mine, NETWORK["pollux"]),
            checkpoint_s=half(SWITCH_S["pollux"]),
            restore_s=half(SWITCH_S["pollux"]),
            gpu_speed={"T4": 1.0},
            gpu_type="T4",
            source=f"Pollux (OSDI'21) placements, local batch {batch}, 4 T4 a host, 50 Gbit/s; switch 30 s",
        )
        profiles.append(profile)
    return profiles, points


def titan(data: Path) -> Derived:
    """Step and (exposed, smoothed by its authors) sync times on A100 (Gao et al., Titan).

    Compute on V100 gives `gpu_speed`. The context switch is the geometric mean of the two GPU
    types' measurements, which differ by up to 25 times (vit: 105.0 and 4.2 s).
    """
    folder = data / "profiles/titan"
    profiles, points = [], []
    for model, batch in TITAN_BATCH.items():
        name = f"titan/{model}"
        mine = placements(folder / f"A100/{model}_placements.csv", name, batch)
        slow = placements(folder / f"V100/{model}_placements.csv", name, batch)
        points += mine
        demands = from_placements(mine, NETWORK["titan"])
        ratio = demands[0].compute_s / from_placements(slow, 1.0)[0].compute_s
        switch_s = statistics.geometric_mean(
            float(table(folder / f"{gpu}/{model}_context_switch.csv")[0]["time_cost"])
            for gpu in ("A100", "V100")
        )
        profile = Profile(
            name=name,
            demands=demands,
            checkpoint_s=half(switch_s),
            restore_s=half(switch_s),
            gpu_speed={"A100": 1.0, "V100": four(ratio)},
            gpu_type="A100",
            source=f"Titan placements and context switch, local batch {batch}, A100, 200 Gbit/s assumed",
        )
        profiles.append(profile)
    return profiles, points


# --- Gavel --------------------------------------------------------------------------------------


def gavel(data: Path) -> Derived:
    """Throughputs on one host and on one host per GPU (Narayanan et al., OSDI'20), V100.

    Steps/s count every rank's steps, so T = K / throughput. Two placements solve the law exactly
    with overlap 0: V = (T_spread - T_one) / (1/B - 1/NVLink), at least 0, and C = T_one - V/NVLink.
    """
    tput: dict[tuple[str, str, int], tuple[float, float]] = {}
    for row in table(data / "profiles/gavel/simulation_throughputs_flat.csv"):
        batch = f" (batch size {row['batch_size']})" if row["batch_size"] else ""
        pair = (float(row["steps_per_s_consolidated"]), float(row["steps_per_s_unconsolidated"] or 0))
        tput[row["gpu"].upper(), row["model"] + batch, int(row["scale_factor"])] = pair
    names = sorted({name for _, name, _ in tput}, key=lambda n: (n.split(" ")[0], len(n), n))
    profiles, points = [], []
    for name in names:
        speed = {
            gpu: four(tput[gpu, name, 1][0] / tput["V100", name, 1][0]) for gpu in ("V100", "P100", "K80")
        }
        mine = {k: pair for (gpu, n, k), pair in sorted(tput.items()) if gpu == "V100" and n == name}
        profile = Profile(
            name=f"gavel/{name}",
            demands=extended(gavel_demand(k, *pair) for k, pair in mine.items()),
            checkpoint_s=half(SWITCH_S["gavel"]),
            restore_s=half(SWITCH_S["gavel"]),
            gpu_speed=speed,
            gpu_type="V100",
            source="Gavel (OSDI'20) throughputs, 10 Gbit/s assumed; switch 20 s as Shockwave",
        )
        profiles.append(profile)
        points += gavel_points(name, speed, tput)
    return profiles, points


def gavel_demand(gpus: int, one_host: float, spread: float) -> Demand:
    """Solve the law for one pair of throughputs [steps/s]."""
    if gpus == 1:
        return Demand(1, 1 / one_host, 0.0)
    gap_s = max(0.0, gpus / spread - gpus / one_host)
    traffic_bytes = gap_s / (1 / NETWORK["gavel"] - 1 / NVLINK)
    return Demand(gpus, gpus / one_host - traffic_bytes / NVLINK, traffic_bytes)


def gavel_points(name: str, speed: dict[str, float], tput: dict[Any, tuple[float, float]]) -> list[Point]:
    """Both placements on every GPU type that ran them."""
    return [
        Point(f"gavel/{name}", k, hosts, k / rate, speed=speed[gpu])
        for (gpu, n, k), pair in tput.items()
        for hosts, rate in zip((1, k), pair, strict=True)
        if n == name and rate > 0 and (k > 1 or hosts == 1)
    ]


# --- Not measured: scaled from others ----------------------------------------------------------------


def tiresias(data: Path, measured: dict[str, Profile]) -> list[Profile]:
    """Tiresias' CNNs that nobody timed: size from its tensor list, compute by FLOP from a relative.

    V is the ideal ring's, without overhead: a lower bound. VGG and AlexNet take the GPU time of
    Muri's vgg16 (68 ms at batch 16), ResNet and Inception Gavel's ResNet-50 at batch 64.
    """
    sizes = json.loads((data / "profiles/tiresias/tensor_sizes_MB.json").read_text())
    vgg16_s = next(
        float(r["resource_time_1_ms"]) / 1e3
        for r in table(data / "profiles/muri/model_stage_times_ms.csv")
        if (r["model"], r["num_gpu"]) == ("vgg16", "1")
    )
    resnet50_s = measured["gavel/ResNet-50 (batch size 64)"].demand(1).compute_s
    base = {"vgg16": ("Muri vgg16", vgg16_s), "resnet50": ("Gavel ResNet-50", resnet50_s)}
    profiles = []
    for model in ("alexnet", "vgg11", "resnet101", "resnet152", "inception3", "inception4"):
        relative = "vgg16" if model in ("alexnet", "vgg11") else "resnet50"
        title, base_s = base[relative]
        compute_s = base_s * GFLOP[model] / GFLOP[relative]
        size_bytes = sizes[model]["total_MB"] * MEBI
        profile = Profile(
            name=f"tiresias/{model}",
            demands=extended(Demand(k, compute_s, ring(k) * size_bytes) for k in (1, 2, 4, 8)),
            checkpoint_s=half(SWITCH_S["tiresias"]),
            restore_s=half(SWITCH_S["tiresias"]),
            gpu_speed={"V100": 1.0},
            gpu_type="V100",
            source=f"not timed: Tiresias (NSDI'19) tensor sizes, {title} scaled by FLOP; switch 62 s",
        )
        profiles.append(profile)
    return profiles


def megatron() -> list[Profile]:
    """Large language models from their published speed: GPUs of one host share its 8 x 200 Gbit/s.

    F = 96 B s l h^2 (1 + s/6h + V/16lh) FLOP an iteration (section 5.1 there), T = F / (n X); 2-byte
    gradients of all P = l (12 h^2) + (vocabulary + sequence) h parameters cross each host's network
    on data-parallel rings. Batch grows with the GPUs. A checkpoint of 14 bytes a parameter (section
    5.10) at 1 GB/s is our assumption.
    """
    return [megatron_profile(name, *shape) for name, shape in MEGATRON.items()]


def megatron_profile(
    name: str, layers: int, hidden: int, tensor: int, gpus: int, batch: int, flops: float
) -> Profile:
    """One row of the table."""
    sequence, vocabulary = 2048, 51200
    work = 96.0 * batch * sequence * layers * hidden**2
    work *= 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    parameters = 12 * layers * hidden**2 + (vocabulary + sequence) * hidden
    measured_s = work / (gpus * flops)
    compute_s = measured_s - ring(gpus // tensor) * 2 * parameters / (8 * 200 * GBIT)
    counts = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k >= tensor]
    return Profile(
        name=f"megatron/{name}",
        demands=tuple(rounded(Demand(k, compute_s, ring(k // tensor) * 2 * parameters)) for k in counts),
        checkpoint_s=four(14 * parameters / 1e9),
        restore_s=four(14 * parameters / 1e9),
        gpu_speed={"A100": 1.0},
        gpu_type="A100",
        source="not measured by placement: Narayanan et al. (SC'21) table 1, 2-byte ring; 14 B/parameter at 1 GB/s",
    )


# --- The shipped file -----------------------------------------------------------------------------

POLLUX_JOBS = {"ncf": 503, "cifar10": 495, "deepspeech2": 111, "bert": 86, "yolov3": 59, "imagenet": 26}
MURI_MODELS = ("a2c", "bert", "dqn", "gpt2", "resnet18", "shufflenet_v2_x1_0", "vgg16", "vgg19")
ALIASES = {
    "bert-base": "muri/bert", "shufflenet": "muri/shufflenet_v2_x1_0", "roberta": "titan/roberta-base",
    "shufflenet-v2": "muri/shufflenet_v2_x1_0", "vit-base": "titan/vit", "resnet-50-imagenet": "pollux/imagenet",
    "resnet-18-cifar10": "pollux/cifar10", "deepspeech": "pollux/deepspeech2", "yolo": "pollux/yolov3",
    "neumf": "pollux/ncf", "inception-v3": "tiresias/inception3", "inception-v4": "tiresias/inception4",
    "gpt": "muri/gpt2",
}  # fmt: skip


def mixes(profiles: list[Profile]) -> dict[str, Any]:
    """Which models the jobs of a trace are, where it does not say."""
    even = dict.fromkeys((f"muri/{m}" for m in MURI_MODELS), 1.0)
    network = dict.fromkeys((f"muri/{m}" for m in MURI_MODELS if m not in ("a2c", "dqn")), 1.0)
    large = {
        "muri/gpt2": 4,
        "muri/bert": 4,
        "titan/roberta-large": 2,
        "titan/vit-large": 2,
        "megatron/gpt-1.7b": 2,
    }
    largest = {"megatron/gpt-1.7b": 4, "megatron/gpt-7.5b": 4, "muri/gpt2": 1, "muri/bert": 1}
    named = [p for p in profiles if p.name.startswith("gavel/")]
    return {
        "default": mix(
            "Muri's eight models, evenly, to 8 GPUs; without its two reinforcement learners to 31; "
            "language and vision transformers from 32; Megatron's GPTs mostly from 128 (a choice of ours)",
            {1: even, 9: network, 32: large, 128: largest},
        ),
        "muri": mix("the eight models of Muri's traces, evenly, as they draw them", {1: even}),
        "pollux": mix(
            "the shares of the 160-job workloads of Pollux (OSDI'21, eight of them, 1280 jobs)",
            {1: {f"pollux/{m}": n for m, n in POLLUX_JOBS.items()}},
        ),
        "gavel": mix(
            "Gavel's 26 job types, evenly, as its generator draws them; from 2 GPUs the 19 measured there",
            {1: {p.name: 1.0 for p in named}, 2: {p.name: 1.0 for p in named if p.demands[-1].gpus > 1}},
        ),
        "lingjun-like": mix(
            "GPTs beside BERT and ResNet, after what is said of Alibaba's Lingjun cluster (Crux, SIGCOMM'24); "
            "its job table was not at hand, so the shares are ours",
            {1: {"muri/gpt2": 4, "muri/bert": 4, "gavel/ResNet-50 (batch size 32)": 2},
             8: {"megatron/gpt-1.7b": 3, "muri/gpt2": 3, "muri/bert": 3, "gavel/ResNet-50 (batch size 32)": 1},
             64: {"megatron/gpt-7.5b": 5, "megatron/gpt-1.7b": 3, "muri/gpt2": 1, "muri/bert": 1}},
        ),
    }  # fmt: skip


def mix(about: str, bands: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """One mix: what it is, and the shares from each number of GPUs on."""
    return {"about": about, "bands": [{"from_gpus": k, "shares": shares} for k, shares in bands.items()]}


def derive(data: Path) -> tuple[dict[str, Any], dict[str, Derived]]:
    """The shipped file as a value, and each source's profiles and measured points."""
    sources = {"muri": muri(data), "titan": titan(data), "gavel": gavel(data), "pollux": pollux(data)}
    measured = {p.name: p for profiles, _ in sources.values() for p in profiles}
    profiles = [*measured.values(), *tiresias(data, measured), *megatron()]
    file = {
        "schema": SCHEMA,
        "about": "Derived by tools/derive_profiles.py from published measurements; see docs/reference/profiles.md.",
        "profiles": profiles,
        "aliases": ALIASES,
        "mixes": mixes(profiles),
    }
    return file, sources


def render(file: dict[str, Any]) -> str:
    """The file as JSON text, one profile a line."""
    profiles = ",\n".join("  " + msgspec.json.encode(p).decode() for p in file["profiles"])
    aliases = json.dumps(file["aliases"], indent=1)
    blends = ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in file["mixes"].items())
    head = f'"schema": "{file["schema"]}",\n"about": "{file["about"]}"'
    return f'{{{head},\n"profiles": [\n{profiles}\n],\n"aliases": {aliases},\n"mixes": {{\n{blends}\n}}}}\n'


# --- How well it fits -----------------------------------------------------------------------------


def host_rate(source: str, derived: Derived) -> float:
    """Effective rate inside a host: the median of V / sync over placements on one host.

    Gavel timed no communication, so its V100 hosts have NVLink's rate.
    """
    if source == "gavel":
        return NVLINK
    profiles = {p.name: p for p in derived[0]}
    return statistics.median(
        profiles[p.profile].demand(p.gpus).traffic_bytes / p.sync_s
        for p in derived[1]
        if p.hosts == 1 and p.gpus > 1 and p.sync_s > 0
    )


def error(profile: Profile, point: Point, network: float, host: float) -> float:
    """Signed relative error of the predicted iteration time."""
    predicted_s = iteration_s(profile, point.gpus, host if point.hosts == 1 else network, point.speed)
    return predicted_s / point.iteration_s - 1


def fit(about: str, source: str, derived: Derived, keep: Callable[[Point], bool]) -> Fit:
    """Predicted against measured, over the placements to keep."""
    profiles = {p.name: p for p in derived[0]}
    host = host_rate(source, derived)
    errors = {p: error(profiles[p.profile], p, NETWORK[source], host) for p in derived[1] if keep(p)}
    worst = max(errors, key=lambda p: abs(errors[p]))
    where = f"{worst.profile} on {worst.gpus} GPUs, {worst.hosts} host{'s' * (worst.hosts > 1)}"
    mean = statistics.fmean(map(abs, errors.values()))
    return Fit(about, len(errors), mean, errors[worst], where)


def fits(sources: dict[str, Derived]) -> list[Fit]:
    """One row per source, one host and several apart; Gavel's other GPU types apart."""
    rows = []
    for source, derived in sources.items():
        rows.append(fit(f"{source}, one host", source, derived, lambda p: p.speed == 1.0 and p.hosts == 1))
        rows.append(fit(f"{source}, several", source, derived, lambda p: p.speed == 1.0 and p.hosts > 1))
    rows.append(
        fit("gavel, P100 and K80", "gavel", sources["gavel"], lambda p: p.speed != 1.0 and p.gpus > 1)
    )
    return rows


def fit_table(sources: dict[str, Derived]) -> str:
    """Markdown: mean and largest error, and the rate implied inside a host."""
    lines = [
        "| placements of | number | mean error | largest | where | network / implied host rate [GB/s] |",
        "|---|---|---|---|---|---|",
    ]
    for row in fits(sources):
        source = row.about.split(",")[0]
        rates = f"{NETWORK[source] / 1e9:.4g} / {host_rate(source, sources[source]) / 1e9:.3g}"
        lines.append(
            f"| {row.about} | {row.placements} | {row.mean:.1%} | {row.largest:+.0%} | {row.where} | {rates} |"
        )
    return "\n".join(lines)


#: Parameters as published by the models' authors, for the ratio of effective to ideal traffic.
MILLION_PARAMETERS = {
    "muri/bert": 110, "muri/gpt2": 124, "muri/resnet18": 11.7, "muri/vgg16": 138.4, "muri/vgg19": 143.7,
    "muri/shufflenet_v2_x1_0": 2.3, "titan/roberta-base": 125, "titan/roberta-large": 355, "titan/vit": 86,
    "titan/vit-large": 304, "gavel/ResNet-50 (batch size 32)": 25.6, "pollux/bert": 110,
    "pollux/imagenet": 25.6, "pollux/yolov3": 62,
}  # fmt: skip


def sensitivity_table(profiles: list[Profile]) -> str:
    """Markdown: the iteration's time over the network, by its NIC, relative to NVLink."""
    rates = (10, 25, 100, 400)
    heads = [f"{k} GPUs, {rate}" for k in (8, 16) for rate in rates]
    lines = [
        "| model | C [ms] | V [GB] | V / ideal | overlap | " + " | ".join(heads) + " |",
        "|---|---|---|---|---|" + "---|" * len(heads),
    ]
    for profile in (p for p in profiles if p.demands[-1].gpus > 1):
        demand = profile.demand(16)
        size = MILLION_PARAMETERS.get(profile.name)
        ideal = f"{demand.traffic_bytes / (ring(16) * 4e6 * size):.2g}" if size else ""
        cells = [
            f"{iteration_s(profile, k, rate * GBIT) / iteration_s(profile, k, NVLINK):.2f}"
            for k in (8, 16)
            for rate in rates
        ]
        row = [
            profile.name, f"{demand.compute_s * 1e3:.4g}", f"{demand.traffic_bytes / 1e9:.3g}", ideal,
            f"{profile.overlap:.2g}", *cells,
        ]  # fmt: skip
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    """Write the shipped file and print how well it fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that holds profiles/muri, profiles/pollux, ...")
    parser.add_argument("--output", type=Path, default=SHIPPED, help="where to write the profiles")
    parser.add_argument("--tables", action="store_true", help="print the sensitivity table too")
    arguments = parser.parse_args()
    file, sources = derive(arguments.data)
    arguments.output.write_text(render(file))
    by_sum, by_max = stage_rules(arguments.data)
    print(fit_table(sources))
    print(f"\nMuri's iteration as the sum of its stages: {by_sum:.1%} off, as the longest: {by_max:.1%}")
    if arguments.tables:
        print("\n" + sensitivity_table(file["profiles"]))


if __name__ == "__main__":
    main()
