"""Rank 0's buffers at all ranks, over real endpoints of one process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from endpoints import connected, together

from hemiola.train.accelerate.exchange import share_buffers


def buffers(rank):
    """Of types whose elements have to lie at different addresses, in an order that does not help, with gaps and empty ones."""
    source = torch.Generator().manual_seed(rank)
    return [
        torch.rand(3, generator=source) > 0.5, torch.rand(5, 2, generator=source), torch.tensor(7 + rank),
        torch.rand(3, generator=source).half(), torch.empty(0), torch.rand(3, generator=source, dtype=torch.float64),
        torch.rand(4, 6, generator=source)[:, ::2], torch.rand(2, generator=source).to(torch.complex64), torch.rand(1, generator=source),
    ]  # fmt: skip


def shared(end, own, device):
    with torch.device(device):
        share_buffers(end, own)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_all_have_those_of_the_first_rank_whatever_their_types_and_the_default_device(device):
    own, expected = [buffers(rank) for rank in range(3)], buffers(0)
    places = [[buffer.data_ptr() for buffer in each] for each in own]
    with connected(3) as ends:
        assert together(lambda end: shared(end, own[end.rank], device), ends) == [None] * 3
        assert together(lambda end: share_buffers(end, []), ends) == [None] * 3
    for each, before in zip(own, places, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(each, expected, strict=True))
        assert [buffer.data_ptr() for buffer in each] == before
