"""PyTorch's profiler: real gloo traces recorded here, NCCL traces in the documented form."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_samples import nccl_trace, write_json

from hemiola.analysis.job.metrics import job_metrics
from hemiola.core.errors import InputError
from hemiola.core.job_timeline import SPAN_KINDS
from hemiola.trace.jobs.collectives import collective_of, offset_between, size_of_type, tensors_bytes
from hemiola.trace.jobs.execution_trace import data_dependencies, read_execution_trace
from hemiola.trace.jobs.kineto.timeline import read_kineto
from hemiola.trace.jobs.read import read_job


def rows(timeline, rank=0):
    sent = timeline.transfers
    return [
        (timeline.names[sent.name[at]], sent.size_bytes[at], *(round(float(column[at]) * 1e6, 2) for column in (
            sent.enqueue_s, sent.first_byte_s, sent.last_byte_s)), int(sent.iteration[at]))
        for at in np.flatnonzero(sent.rank == rank)
    ]  # fmt: skip


def kinds(timeline):
    return {
        timeline.names[name]: SPAN_KINDS[kind]
        for name, kind in zip(timeline.spans.name, timeline.spans.kind, strict=True)
    }


@pytest.fixture
def nccl(tmp_path):
    return [write_json(nccl_trace(rank), tmp_path / f"rank{rank}.json") for rank in (0, 1)]


def test_nccl_kernels_are_transfers(nccl):
    timeline = read_kineto(nccl)
    assert rows(timeline) == [
        ("all-reduce 0", 4096.0, 200.0, 330.0, 630.0, 4),
        ("all-gather 0", 1024.0, 700.0, 710.0, 760.0, 4),  # arguments from record_param_comms
    ]
    assert timeline.groups == ((0, 1),)
    assert [rank.device for rank in timeline.ranks] == ["cuda:0", "cuda:1"]
    assert timeline.origin_unix_s == pytest.approx(1_700_000_000.005, abs=1e-6)


def test_on_a_gpu_kernels_compute_and_the_cpu_only_asks(nccl):
    timeline = read_kineto(nccl)
    found = kinds(timeline)
    assert found["ampere_sgemm_128x64_tn"] == "compute"
    assert found["aten::mm"] == "other"
    assert found["Memcpy DtoH (Device -> Pinned)"] == "copy"
    assert found["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] == "input"
    assert {"stream 7", "stream 20", "main thread", "thread 80 (autograd)"} == set(timeline.lanes)


def test_launches_are_dependencies_and_give_the_iteration(nccl):
    timeline = read_kineto(nccl[:1])
    names = [timeline.names[name] for name in timeline.spans.name]
    caused = {names[after] for _, after in timeline.dependencies}
    assert len(timeline.dependencies) == 4
    assert caused == {name for name in names if name.startswith(("ampere", "nccl", "Memcpy"))}
    copied = names.index("Memcpy DtoH (Device -> Pinned)")
    assert (
        timeline.spans.start_s[copied] > timeline.iterations.end_s[0]
    )  # it ran after the step that asked for it
    assert timeline.spans.iteration[copied] == 4


def test_collectives_are_of_the_step_that_launched_them_on_every_rank(tmp_path):
    """Of two steps of 100 µs with two all-reduces each, the first one's second begins after its end on one of the ranks."""
    launches, paths = (80, 95, 180, 190), []
    for rank, begins in enumerate(((85, 105, 185, 195), (85, 99, 185, 195))):
        trace = nccl_trace(rank)
        said = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]"}
        events = [("user_annotation", f"ProfilerStep#{step}", 100 * step, 100, {}) for step in (0, 1)]
        for number, (launch, begin) in enumerate(zip(launches, begins, strict=True), 1):
            one = {"correlation": number}
            events.append(("cuda_runtime", "cudaLaunchKernel", launch, 2, one))
            events.append(("kernel", "ncclDevKernel_AllReduce_Sum_f32", begin, 3, one | said))
        trace["traceEvents"] = [
            {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": args}
            for cat, name, ts, dur, args in events
        ]
        paths.append(write_json(trace, tmp_path / f"{rank}.json"))
    timeline = read_kineto(paths)
    for rank in (0, 1):
        assert [(row[0], row[-1]) for row in rows(timeline, rank)] == [
            ("all-reduce 0", 0), ("all-reduce 1", 0), ("all-reduce 0", 1), ("all-reduce 1", 1)
        ]  # fmt: skip
    assert [rank.collectives for rank in job_metrics(timeline).stragglers] == [4, 4]


def test_sends_and_receives_in_one_kernel_are_of_nobody_knows_which_ranks(tmp_path):
    """A pipeline's stages, whose kernels of one number are not of one transfer."""
    group = {"pg_name": "0", "ranks": [0, 1, 2, 3]}
    paths = []
    for rank in range(4):
        trace = nccl_trace(rank)
        trace["distributedInfo"] |= {"world_size": 4, "pg_config": [group]}
        trace["traceEvents"] = [
            {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": {"correlation": at}}
            for at in (1, 2)
            for cat, name, ts, dur in (
                ("cuda_runtime", "cudaLaunchKernel", 100 * at + 10 * rank, 2),
                ("kernel", "ncclDevKernel_SendRecv", 100 * at + 20 * rank, 50),
            )
        ]  # fmt: skip
        paths.append(write_json(trace, tmp_path / f"{rank}.json"))
    timeline = read_kineto(paths)
    assert timeline.groups == ((0, 1, 2, 3),)
    assert job_metrics(timeline).stragglers == ()


def test_a_gpu_that_comes_late_is_found_though_its_host_launches_in_time(tmp_path):
    """Both of rank 1's collectives begin 40 µs after rank 0's, which were launched at the same time."""
    paths = [write_json(nccl_trace(rank, late_s=rank * 40e-6), tmp_path / f"{rank}.json") for rank in (0, 1)]
    late, punctual = job_metrics(read_kineto(paths)).stragglers
    assert (late.rank, late.last, punctual.last) == (1, 2, 0)
    assert (late.margin_s, late.waited_s) == pytest.approx((40e-6, 80e-6))


def test_what_is_left_out_is_counted(nccl):
    assert read_kineto(nccl[:1]).facts["left_out_events"] == {"ac2g": 8, "gpu_user_annotation": 1, "ph i": 1}


def test_one_host_has_one_clock(nccl):
    timeline = read_kineto(nccl[::-1])
    assert [rank.rank for rank in timeline.ranks] == [0, 1]
    assert [(rank.clock_offset_s, rank.clock_error_s) for rank in timeline.ranks] == [(0, 0), (0, 0)]


def test_clocks_of_two_hosts_meet_in_collectives(tmp_path):
    """The second host is 3 s ahead, and its rank comes 20 µs late; the all-gather bounds the error to 50 µs."""
    paths = [
        write_json(nccl_trace(0), tmp_path / "a.json"),
        write_json(nccl_trace(1, host="node-b", ahead_s=3.0, late_s=20e-6), tmp_path / "b.json"),
    ]
    timeline = read_kineto(paths)
    assert timeline.ranks[1].clock_offset_s == pytest.approx(-3.0, abs=1e-7)
    assert timeline.ranks[1].clock_error_s == pytest.approx(50e-6, abs=1e-7)
    ends = timeline.transfers.last_byte_s
    assert ends[0] == pytest.approx(ends[2], abs=1e-7)
    assert timeline.facts["clocks"].startswith("several hosts: offsets from the ends")


def in_groups(groups, folder, *, names=(None, None), config=False):
    """Files of two ranks, in which the list of a group's ranks is cut short; the name may be left out, too."""
    paths = []
    for rank, name in enumerate(names):
        trace = nccl_trace(rank, late_s=20e-6 * rank)
        trace["distributedInfo"]["pg_count"] = groups
        if config:
            trace["distributedInfo"]["pg_config"] = [{"pg_name": name, "ranks": [rank, *range(2, 64)]}]
        for event in trace["traceEvents"]:
            arguments = event.get("args", {})
            if "Process Group Ranks" in arguments:
                arguments |= {"Process Group Ranks": "[0, 1, ..., 62]", "Process Group Name": name}
                if name is None:
                    del arguments["Process Group Name"]
        paths.append(write_json(trace, folder / f"{rank}.json"))
    return paths


@pytest.mark.parametrize("names", [(None, None), ("1", "2")])
@pytest.mark.parametrize("hosts", [1, 2])
def test_collectives_of_unknown_groups_are_not_one(tmp_path, names, hosts):
    paths = in_groups(2, tmp_path, names=names)
    if hosts == 2:
        write_json(json.loads(paths[1].read_text()) | {"host_name": "node-b"}, paths[1])
    timeline = read_kineto(paths)
    assert math.isinf(timeline.ranks[1].clock_error_s) == (hosts == 2)
    assert len({*timeline.transfers.name}) == 4
    assert not any(rank.collectives for rank in job_metrics(timeline).stragglers)


def test_groups_whose_ranks_were_cut_short_are_known_by_their_names(tmp_path):
    assert read_kineto(in_groups(1, tmp_path)).groups == ((0, 1),)  # there is no other
    timeline = read_kineto(in_groups(2, tmp_path, names=("1", "1")))
    assert [rank.collectives for rank in job_metrics(timeline).stragglers] == [2, 2]
    timeline = read_kineto(in_groups(2, tmp_path, names=("1", "2"), config=True))
    assert timeline.groups == tuple((rank, *range(2, 64)) for rank in (0, 1))


def test_ranks_of_one_host_share_its_clock_beside_another_host(tmp_path):
    """Ranks 0 and 1 on one host, 2 and 3 on one that is 3 s ahead; the all-gather is bounded by whoever comes last."""
    files = [nccl_trace(0), nccl_trace(1, late_s=20e-6)]
    files += [
        nccl_trace(rank, host="node-b", ahead_s=3.0, late_s=late_s) for rank, late_s in ((2, 30e-6), (3, 0.0))
    ]
    timeline = read_kineto([write_json(file, tmp_path / f"{rank}.json") for rank, file in enumerate(files)])
    told = [(rank.clock_offset_s, rank.clock_error_s) for rank in timeline.ranks]
    assert told[:2] == [(0.0, 0.0)] * 2
    assert told[2] == told[3] == (pytest.approx(-3.0, abs=1e-7), pytest.approx(30e-6, abs=1e-7))


def test_clocks_without_a_meeting_are_said_to_be_unknown(tmp_path):
    lonely = nccl_trace(1, host="node-b")
    lonely["traceEvents"] = [event for event in lonely["traceEvents"] if "nccl" not in event["name"]]
    paths = [write_json(nccl_trace(0), tmp_path / "a.json"), write_json(lonely, tmp_path / "b.json")]
    timeline = read_kineto(paths)
    assert math.isinf(timeline.ranks[1].clock_error_s)
    assert "unknown" in timeline.facts["clocks"]


@given(
    st.floats(-100, 100),
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8
    ),
)
def test_the_true_offset_lies_in_the_interval(ahead_s, meetings):
    """Whatever the ranks do: nobody leaves a collective before everybody has come."""
    one, other = {}, {}
    for at, (came, others_came, left, others_left) in enumerate(meetings):
        all_here = 10 * at + max(came, others_came)
        one[at] = (10 * at + came, all_here + left)
        other[at] = (10 * at + others_came + ahead_s, all_here + others_left + ahead_s)
    offset_s, error_s = offset_between(one, other)
    assert abs(offset_s + ahead_s) <= error_s + 1e-9


def test_contradicting_collectives_give_no_offset():
    assert offset_between({1: (0, 1), 2: (10, 11)}, {1: (5, 6), 2: (0, 1)}) == (0.0, math.inf)


def test_a_file_that_does_not_say_its_rank_goes_alone_only(tmp_path):
    trace = nccl_trace(0)
    del trace["distributedInfo"]
    alone = write_json(trace, tmp_path / "alone.json")
    assert read_kineto([alone]).ranks[0].rank == 0
    with pytest.raises(InputError, match="which rank"):
        read_kineto([alone, write_json(nccl_trace(1), tmp_path / "b.json")])


def test_two_files_of_one_rank_are_refused(nccl):
    with pytest.raises(InputError, match="two files are of rank 0"):
        read_kineto([nccl[0], nccl[0]])


def test_a_truncated_file_names_the_byte_and_what_can_be_read(nccl, tmp_path):
    content = nccl[0].read_bytes()
    cut = content.index(b"Memcpy")
    (tmp_path / "cut.json").write_bytes(content[:cut])
    with pytest.raises(InputError, match=r"damaged at byte \d+, after 21 elements") as caught:
        read_kineto([tmp_path / "cut.json"])
    assert "salvage for the 21 elements" in caught.value.remedy
    begin = int(caught.value.what.split("byte ")[1].split(",")[0])
    assert content[begin : cut + 1].startswith(b'{"ph": "X", "cat": "gpu_memcpy"')
    timeline = read_kineto([tmp_path / "cut.json"], salvage=True)
    assert len(timeline.transfers) == 2
    assert "byte" in timeline.facts["damaged"]["cut.json"]


def test_a_truncated_compressed_file_gives_what_was_before(nccl, tmp_path):
    trace = nccl_trace(0)
    trace["traceEvents"] *= 400
    packed = gzip.compress(json.dumps(trace).encode())
    (tmp_path / "cut.json.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="end-of-stream"):
        read_kineto([tmp_path / "cut.json.gz"])
    assert len(read_kineto([tmp_path / "cut.json.gz"], salvage=True).spans) > 1000


def test_the_array_form_is_read_too(nccl, tmp_path):
    events = write_json(nccl_trace(0)["traceEvents"], tmp_path / "events.json")
    assert len(read_job([events]).transfers) == 2


def test_a_large_file_streams(tmp_path):
    """A file a hundred times the size needs far less than its size of memory to be walked through."""
    import tracemalloc

    from hemiola.trace.jobs.json_stream import JsonStream

    trace = nccl_trace(0)
    trace["traceEvents"] *= 2500
    path = write_json(trace, tmp_path / "large.json")
    expected = len(trace["traceEvents"])
    del trace
    tracemalloc.start()
    with JsonStream(path, ["traceEvents"]).members() as members:
        count = sum(key == "traceEvents" for key, _ in members)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == expected
    assert path.stat().st_size > 10e6
    assert peak < 6e6


def test_real_gloo_traces(gloo_traces):
    timeline = read_kineto([gloo_traces / "kineto.0.json", gloo_traces / "kineto.1.json"])
    sent = timeline.transfers
    names = np.array(timeline.names)
    for rank in (0, 1):
        mine = sent.rank == rank
        assert np.array_equal(timeline.iterations.number[timeline.iterations.rank == rank], [2, 3, 4])
        reduced = mine & (names[sent.collective] == "all-reduce")
        for step in (2, 3, 4):
            gradients = sent.size_bytes[reduced & (sent.iteration == step)].sum()
            assert gradients == 4 * (64 * 128 + 128 + 128 * 8 + 8)
        assert sorted(names[sent.collective[mine]]).count("all-gather") == 3
        assert sorted(names[sent.collective[mine]]).count("barrier") == 3
    assert not np.isnan(sent.enqueue_s).any()
    assert (sent.enqueue_s <= sent.first_byte_s).all()
    assert timeline.groups == ((0, 1),)
    assert {rank.device for rank in timeline.ranks} == {"cpu"}


def test_what_gloo_does_inside_a_collective_is_not_the_jobs_computation(gloo_traces):
    timeline = read_kineto([gloo_traces / "kineto.0.json"])
    spans = timeline.spans
    sent = np.flatnonzero(spans.kind == SPAN_KINDS.index("communication"))
    inside = [
        at
        for one in sent
        for at in np.flatnonzero(
            (spans.lane == spans.lane[one])
            & (spans.start_s > spans.start_s[one])
            & (spans.end_s < spans.end_s[one])
        )
    ]
    assert inside
    assert {SPAN_KINDS[spans.kind[at]] for at in inside} == {"other"}


def test_ranks_name_their_real_collectives_alike(gloo_traces):
    timeline = read_kineto([gloo_traces / "kineto.0.json", gloo_traces / "kineto.1.json"])
    sent = timeline.transfers
    told = [
        sorted(
            (int(sent.iteration[at]), timeline.names[sent.name[at]], float(sent.size_bytes[at]))
            for at in np.flatnonzero(sent.rank == rank)
        )
        for rank in (0, 1)
    ]
    assert told[0] == told[1]


def test_without_the_profilers_steps_iterations_end_with_the_optimizers(gloo_traces, tmp_path):
    whole = json.loads((gloo_traces / "kineto.0.json").read_text())
    events = whole["traceEvents"]
    stripped = [e for e in events if not str(e.get("name", "")).startswith("ProfilerStep")]
    assert len(stripped) < len(events)
    timeline = read_kineto([write_json(whole | {"traceEvents": stripped}, tmp_path / "kineto.0.json")])
    names = [timeline.names[name] for name in timeline.spans.name]
    steps = [at for at, name in enumerate(names) if name.startswith("Optimizer.step#SGD")]
    found = timeline.iterations
    assert found.number.tolist() == [0, 1, 2]
    assert found.end_s.tolist() == sorted(timeline.spans.end_s[steps].tolist())
    assert found.start_s[1:].tolist() == found.end_s[:-1].tolist()


def test_real_execution_traces_join_and_give_dependencies(gloo_traces):
    timeline = read_job([gloo_traces])
    linked = timeline.facts["execution_traces"]
    assert len(linked) == 2
    assert all(found["linked"] > 0.9 * (found["nodes"] - 10) for found in linked.values())
    names = [timeline.names[name] for name in timeline.spans.name]
    communication = SPAN_KINDS.index("communication")
    before, after = timeline.dependencies.T
    reduced = {
        at for at in np.flatnonzero(timeline.spans.kind == communication) if names[at] == "gloo:all_reduce"
    }
    assert reduced <= set(after.tolist())  # somebody filled every bucket
    assert reduced & set(before.tolist())  # and somebody read it again
    assert (timeline.spans.rank[before] == timeline.spans.rank[after]).all()
    assert "read as PyTorch execution trace" in timeline.source


def test_an_execution_trace_alone_has_no_times(gloo_traces):
    with pytest.raises(InputError, match="no times"):
        read_job([gloo_traces / "execution.0.json"])


def test_an_execution_trace_of_another_process_is_refused(gloo_traces):
    with pytest.raises(InputError, match="no Kineto trace beside it"):
        read_job([gloo_traces / "kineto.0.json", gloo_traces / "execution.1.json"])


def test_data_dependencies_follow_storages(tmp_path):
    """fill writes 5, add reads 5 and writes 7, a view of 7, all-reduce changes 7, send and step read it."""

    def node(at, name, reads, writes, parent=1):
        tensors = [[[90 + s, s, 0, 4, 4, "cpu"] for s in storages] for storages in (reads, writes)]
        return {
            "id": at, "name": name, "ctrl_deps": parent, "inputs": {"values": [tensors[0], 1, "x"]},
            "outputs": {"values": tensors[1]}, "attrs": [{"name": "rf_id", "type": "uint64", "value": at}],
        }  # fmt: skip

    nodes = [
        node(1, "process", [], []), node(2, "fill", [], [5]), node(3, "add", [5], [7]),
        node(4, "view", [7], [7]), node(5, "c10d::allreduce_", [7], [7]),
        node(6, "gloo:all_reduce", [7], [], parent=5), node(7, "gloo:send", [7], []),
        node(8, "step", [7], [9]), node(9, "inner", [7], [9], parent=8), node(10, "last", [9], []),
    ]  # fmt: skip
    path = write_json({"schema": "1.1.1-chakra.0.0.4", "pid": 9, "nodes": nodes}, tmp_path / "et.json")
    assert data_dependencies(read_execution_trace(path)) == [
        (2, 3), (3, 4), (3, 5), (3, 6), (6, 7), (6, 8), (9, 10),
    ]  # fmt: skip
    write_json({"schema": "2.0.0-chakra.9", "pid": 9, "nodes": nodes}, path)
    with pytest.raises(InputError, match=r"2\.0\.0-chakra\.9"):
        read_execution_trace(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_reduce_scatter_base", "reduce-scatter"), ("allreduce_coalesced", "all-reduce"), ("gloo:reduce", "reduce"),
        ("ncclDevKernel_Reduce_Sum_f32", "reduce"), ("all_to_allv", "all-to-all"), ("c10d::recv_any_source_", "recv"),
        ("ncclKernel_SendRecv", "send-recv"), ("wait", ""),
    ],
)  # fmt: skip
def test_collectives(name, said):
    assert collective_of(name) == said


def test_sizes():
    assert size_of_type("c10::Half") == 2
    assert math.isnan(size_of_type("Quaternion"))
    assert tensors_bytes([[2, 3], []], ["float", "double"]) == 32
    assert math.isnan(tensors_bytes([[2, "x"]], ["float"]))
