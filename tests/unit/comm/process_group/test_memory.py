"""A tensor's memory as bytes: whatever its type, as long as somebody has them, and without a trace afterwards."""

from __future__ import annotations

import gc

import pytest
import torch

from hemiola.comm.process_group.memory import view
from hemiola.core.errors import InputError


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float64, torch.complex64])
def test_bytes_are_the_tensors_own(dtype):
    tensor = torch.arange(12).to(dtype).view(3, 4)
    data = view(tensor)
    assert bytes(data) == bytes(tensor.view(-1).view(torch.uint8).tolist())
    data[: dtype.itemsize] = data[-dtype.itemsize :]
    assert tensor[0, 0] == tensor[2, 3]
    part = view(tensor[1])
    assert bytes(part) == bytes(data[4 * dtype.itemsize : 8 * dtype.itemsize])
    assert part[1:].obj is part.obj


def test_nothing_can_be_written_too():
    with torch.device("meta"):
        assert not view(torch.empty(0, device="cpu")).readonly


def test_bytes_stay_as_long_as_somebody_has_them():
    data = view(torch.full((100_000,), 7, dtype=torch.uint8))[5:]
    gc.collect()
    assert bytes(data) == bytes([7]) * 99_995


def test_what_was_seen_can_be_resized():
    tensor = torch.ones(100_000)
    assert view(tensor)[0] == 0
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(800_000)
    assert tensor.fill_(2.0).sum() == 200_000


def test_what_is_not_on_the_processor_is_refused():
    with pytest.raises(InputError, match="on meta"):
        view(torch.empty(3, device="meta"))


def test_what_lies_there_otherwise_is_refused():
    tensor = torch.tensor([1 + 2j]).conj()
    for one in (tensor, tensor.imag):
        with pytest.raises(InputError, match="other numbers"):
            view(one)
        assert view(one.resolve_conj().resolve_neg())
