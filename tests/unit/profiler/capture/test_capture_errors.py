"""What cannot be captured is refused: in words, with the line of the user's code, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hemiola.core.errors import GraphError, HemiolaError, InputError
from hemiola.profiler.capture import capture

X = torch.zeros(4, 8)
OUTSIDE = nn.Parameter(torch.zeros(8, 8))


class Does(nn.Module):
    """A layer, then something."""

    def __init__(self, something: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.something = something

    def forward(self, inputs: Tensor) -> Any:
        return self.something(self.layer(inputs))


def asks(value: Tensor) -> Tensor:
    return value if value.sum() > 0 else -value  # line asks


def takes(value: Tensor) -> Tensor:
    return value * value.mean().item()  # line takes


def lists(value: Tensor) -> float:
    return sum(value.flatten().tolist())  # line lists


def picks(value: Tensor) -> Tensor:
    return value[value > 0]  # line picks


def leaves(value: Tensor) -> Tensor:
    return torch.from_numpy(value.detach().numpy())  # line leaves


def breaks(value: Tensor) -> Tensor:
    return value @ torch.zeros(3, 3)  # line breaks


def chooses(value: Tensor) -> Tensor:
    return torch.cond(value.sum() > 0, lambda it: it + 1, lambda it: it - 1, (value,))  # line chooses


def raises(value: Tensor) -> Tensor:
    raise KeyError("no such head")  # line raises


def exits(value: Tensor) -> Tensor:
    raise SystemExit(0)  # line exits


@pytest.mark.parametrize(
    ("something", "said", "remedy"),
    [
        (asks, "asks for a tensor's value", "hemiola trace"),
        (takes, "asks for a tensor's value", "hemiola trace"),
        (lists, "asks for a tensor's value", "hemiola trace"),
        (picks, "depends on a tensor's values", "hemiola trace"),
        (leaves, "leaves PyTorch", "hemiola trace"),
        (chooses, "functions as arguments of an operator (`torch.cond` and the like): cond", "plain Python"),
        (breaks, "RuntimeError", "check that the model runs"),
        (raises, "KeyError: 'no such head'", "check that the model runs"),
        (exits, "ends the program", "raise an exception"),
    ],
)
def test_the_line_is_named(something: Callable[[Tensor], Any], said: str, remedy: str) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith(f"# line {something.__name__}"))
    with pytest.raises(GraphError) as refused:
        capture(Does(something), X)
    assert said in refused.value.what
    assert f"{__file__}:{line}, in {something.__name__}" in refused.value.what
    assert remedy in refused.value.remedy


def test_backward_is_named_too() -> None:
    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient if gradient.sum() > 0 else -gradient

    with pytest.raises(GraphError, match=r"the model's backward .*\n.*in backward"):
        capture(Does(lambda value: Asks.apply(value).sum()), X)


def test_an_operator_without_a_shape_function() -> None:
    @torch.library.custom_op("hemiola_tests::opaque", mutates_args=())
    def opaque(value: Tensor) -> Tensor:
        return value.clone()

    with pytest.raises(GraphError) as refused:
        capture(Does(opaque), X)
    assert "opaque" in refused.value.what
    assert "register_fake" in refused.value.remedy


@pytest.mark.parametrize(
    ("model", "keywords", "said"),
    [
        (Does(lambda value: value).requires_grad_(False), {}, "depends on a trainable parameter"),
        (Does(lambda value: value.detach().sum()), {"loss": lambda value: value}, "no trainable parameter"),
        (Does(lambda value: value), {"loss": lambda value: value}, r"of shape \(4, 8\), not a scalar"),
        (Does(lambda value: value), {"loss": nn.Linear(8, 1)}, "parameters of its own"),
        (nn.LazyLinear(3), {}, "lazy module"),
        (Does(lambda value: value @ OUTSIDE), {}, "trainable tensor"),
        (Does(lambda value: 3), {}, "has no tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_models_that_train_nothing_that_can_be_seen(model: nn.Module, keywords: Any, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        capture(model, X, **keywords)


def test_a_parameter_that_is_reached_around_the_model_is_named() -> None:
    model = Does(lambda value: value.sum())
    weights = list(model.parameters())
    with pytest.raises(GraphError, match=r"parameter 'layer\.weight' is reached around the model") as refused:
        capture(model, X, loss=lambda value: value + 1e-4 * sum(w.pow(2).sum() for w in weights))
    assert "model.parameters()" in refused.value.remedy
    capture(model, X, loss=lambda value: value + 1e-4 * sum(w.pow(2).sum() for w in model.parameters()))


def test_a_line_in_a_package_beside_pytorch_is_the_users() -> None:
    beside = f"{Path(torch.__file__).parent}foo{os.sep}layer.py"
    names: dict[str, Any] = {}
    exec(compile("def forward(value):\n    return value[value > 0]\n", beside, "exec"), names)
    with pytest.raises(GraphError) as refused:
        capture(Does(names["forward"]), X)
    assert f"{beside}:2, in forward" in refused.value.what


def test_a_part_that_torch_jit_compiled_is_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.jit.script(nn.Linear(8, 8))
    with pytest.raises(GraphError, match=r"compiled by `torch.jit`.*\n") as refused:
        capture(nn.Sequential(nn.Linear(8, 8), compiled), X)
    assert "torch.jit.script" in refused.value.remedy


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.nested.nested_tensor([X, X[:2]]), "an input is a nested tensor"),
        (lambda: torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged), "an input is a nested tensor"),
        (X.to_sparse, "an input is a tensor of layout torch.sparse_coo"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_inputs_without_a_plain_shape(make: Callable[[], Tensor], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        capture(nn.Linear(8, 8), {"input": make()})


def test_a_model_without_parameters_has_nothing_to_optimize() -> None:
    with pytest.raises(GraphError, match="no trainable parameter: there is nothing to optimize"):
        capture(nn.ReLU(), X.clone().requires_grad_())
    with pytest.raises(GraphError, match=r"the model's output \(a tensor\)"):
        capture(nn.ReLU(), X)


def test_sparse_gradients_are_refused_by_name() -> None:
    with pytest.raises(GraphError, match="gradient of 'weight' is sparse"):
        capture(nn.Embedding(5, 3, sparse=True), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("model", "keywords", "said"),
    [
        (3, {}, "the model is a int"),
        (nn.Linear(8, 8), {"accumulate": 0}, "accumulate is 0"),
        (nn.Linear(8, 8), {"accumulate": 2.5}, "accumulate is 2.5"),
        (nn.Linear(8, 8), {"samples": 0}, "samples is 0"),
        (nn.Linear(8, 8), {"device": "xyz"}, "the device 'xyz' cannot be captured"),
        (nn.Linear(8, 8), {"device": "mps"}, "the device 'mps' cannot be captured"),
        (nn.Linear(8, 8), {"autocast": "int8"}, "autocast is 'int8'"),
        (nn.Linear(8, 8), {"loss": 3}, "the loss is a int"),
    ],
)
def test_impossible_arguments(model: Any, keywords: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        capture(model, X, **keywords)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: nothing to refuse")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(InputError, match="finds no GPU"):
        capture(nn.Linear(8, 8), X, device="cuda")


def test_without_pytorch_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from hemiola.profiler.capture import capture\n"
        "try: capture(None, None)\n"
        "except Exception as error: print(type(error).__name__, error.remedy)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "InputError pip install 'hemiola[torch]'"


def test_importing_the_capture_imports_no_torch() -> None:
    program = "import sys, hemiola.profiler.capture; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_refusal_says_what_to_do() -> None:
    for something in (asks, picks, breaks):
        with pytest.raises(HemiolaError) as refused:
            capture(Does(something), X)
        assert refused.value.remedy
