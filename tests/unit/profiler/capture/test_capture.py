"""What a capture says of a model: known answers, worked out by hand or published."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from capture_samples import load, small
from torch import Tensor, nn
from torch.nn import functional

from hemiola.core.errors import GraphError, InputError
from hemiola.core.graph import KINDS, PHASES, Graph, Parameter
from hemiola.profiler.capture import capture

FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))


def rows(graph: Graph, phase: int, kind: str = "") -> list[int]:
    operations = graph.operations
    return [
        i
        for i in range(len(operations))
        if operations.phase[i] == phase and (not kind or KINDS[operations.kind[i]] == kind)
    ]


def elements(graph: Graph) -> int:
    return sum(math.prod(parameter.shape) for parameter in graph.parameters)


def named(graph: Graph, name: str) -> Parameter:
    return next(parameter for parameter in graph.parameters if name in (parameter.name, *parameter.aliases))


class TwoLayers(nn.Module):
    """Small enough to work out: 4 rows of 8 to 16 to 2."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.Linear(8, 16)
        self.upper = nn.Linear(16, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.upper(self.lower(inputs).relu())


X = torch.zeros(4, 8)

# ---- known answers ---------------------------------------------------------------------------


def test_two_layers_by_hand() -> None:
    graph = capture(TwoLayers(), X)
    lower, upper = 2 * 4 * 8 * 16, 2 * 4 * 16 * 2
    assert graph.operations.flop[rows(graph, FORWARD)].sum() == lower + upper
    # backward: the weights' gradients, and the inputs' gradient of the upper layer only
    assert graph.operations.flop[rows(graph, BACKWARD)].sum() == lower + 2 * upper
    assert graph.parameter_bytes == 4 * (8 * 16 + 16 + 16 * 2)
    addmm = rows(graph, FORWARD, "matmul")[0]
    assert graph.operations.read_bytes[addmm] == 4 * (16 + 4 * 8 + 8 * 16)
    assert graph.operations.written_bytes[addmm] == 4 * 4 * 16
    signature = graph.signatures[graph.operations.signature[addmm]]
    assert signature.operation == "aten.addmm.default"
    assert signature.arguments[1] == {"shape": [4, 8], "dtype": "float32", "stride": [8, 1]}
    assert signature.arguments[2] == {"shape": [8, 16], "dtype": "float32", "stride": [1, 8]}
    assert graph.samples == 4
    assert graph.optimizer_bytes == 0
    assert "the sum of the output" in graph.source
    assert "SGD(lr=0.01) by default" in graph.source


def test_activations_by_hand() -> None:
    """A chain of exponentials keeps each result for backward; the peak is when backward begins."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1000))

        def forward(self, inputs: Tensor) -> Tensor:
            return (inputs * self.weight).exp().exp().exp().sum()

    # inputs and three results of exp are kept; the product is not; then the sum, the gradient of the
    # sum, and (its expansion takes no memory) the first result of backward
    graph = capture(Chain(), torch.zeros(1000))
    assert graph.saved_bytes == 4 * (1000 + 3 * 1000 + 1 + 1 + 1000)


@pytest.mark.parametrize(
    ("file", "function", "parameters"),
    [
        ("vgg", "full", 138_357_544),
        ("inception", "full", 23_834_568),
        ("hugging_face", "resnet", 25_557_032),
        ("hugging_face", "gpt2", 124_439_808),
        ("hugging_face", "llama", 6_738_415_616),
    ],
)
def test_published_numbers_of_parameters(file: str, function: str, parameters: int) -> None:
    model = getattr(load(file), function)()[0]
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_resnet_50() -> None:
    """4.09 billion multiply-adds per image (He et al., 2016, give 3.8 without counting all layers)."""
    graph = capture(*load("hugging_face").resnet())
    forward = graph.operations.flop[rows(graph, FORWARD)].sum()
    assert forward == pytest.approx(32 * 2 * 4.09e9, rel=0.01)
    assert graph.flop == pytest.approx(0.778e12, rel=0.002)
    assert elements(graph) == 25_557_032
    assert len(graph.blocks) == 3 + 4 + 6 + 3


def test_gpt2_small() -> None:
    graph = capture(*load("hugging_face").gpt2(batch=1))
    assert elements(graph) == 124_439_808
    table = named(graph, "lm_head.weight")
    assert (table.name, table.aliases) == ("transformer.wte.weight", ("lm_head.weight",))
    assert table.gradient_bytes == table.size_bytes == 50257 * 768 * 4
    assert table.first_use == min(parameter.first_use for parameter in graph.parameters)
    assert table.gradient_ready == max(parameter.gradient_ready for parameter in graph.parameters)
    assert graph.blocks == tuple(f"transformer.h.{i}" for i in range(12))
    # forward: every weight but the positions' once per token, and attention's two products
    weights, attention = 2 * 1024 * (124_439_808 - 1024 * 768), 12 * 2 * 2 * 1024 * 1024 * 768
    forward = graph.operations.flop[rows(graph, FORWARD)].sum()
    assert forward == pytest.approx(weights + attention, rel=0.001)  # biases and norms are no products


def test_a_recurrent_kernel_counts_its_products() -> None:
    """PyTorch's counter passes over it: 2 x (steps x batch) x (weights), and twice that backward."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, batch_first=True)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.lstm(inputs)[0].sum()

    graph = capture(Recurrent(), torch.zeros(3, 5, 8))
    assert graph.flop == 3 * 2 * (3 * 5) * 4 * 16 * (8 + 16)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("layer", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_grouped_convolution_multiplies_twice_as_much_backward(layer: type[nn.Module], groups: int) -> None:
    """2 x images x outputs' channels x positions x window x channels of a group, for inputs and for weights."""
    convolution = layer(8, 8, 3, padding=1, groups=groups)
    forward = 2 * 2 * 8 * 36 * 9 * 8 // groups
    first = capture(convolution, torch.zeros(2, 8, 6, 6))
    inner = capture(convolution, torch.zeros(2, 8, 6, 6, requires_grad=True))
    for graph, products in ((first, 1), (inner, 2)):
        assert graph.operations.flop[rows(graph, FORWARD)].sum() == forward
        assert graph.operations.flop[rows(graph, BACKWARD)].sum() == products * forward


def test_a_product_by_groups_counts_each_row_with_its_own_matrix() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Parameter(torch.zeros(24, 16, dtype=torch.bfloat16))
            self.experts = nn.Parameter(torch.zeros(3, 16, 32, dtype=torch.bfloat16))

        def forward(self, ends: Tensor) -> Tensor:
            return torch._grouped_mm(self.tokens, self.experts, offs=ends).exp().sum()

    graph = capture(Experts(), torch.zeros(3, dtype=torch.int32))
    assert graph.operations.flop[rows(graph, FORWARD)].sum() == 2 * 24 * 16 * 32
    assert graph.operations.flop[rows(graph, BACKWARD)].sum() == 2 * 2 * 24 * 16 * 32
    assert "no FLOP" not in graph.source


def test_every_form_of_a_product_by_groups_counts_its_products() -> None:
    class Forms(nn.Linear):
        def forward(self, ends: Tensor) -> Tensor:
            many, few = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((3, 8, 16), (16, 24)))
            alone = torch._grouped_mm(many, many.transpose(1, 2))  # 3 x (8 x 16 x 8)
            wide = torch._grouped_mm(many, few, offs=ends)  # 8 x 16 x 24
            summed = torch._grouped_mm(few, few.t(), offs=ends)  # 16 x 24 x 16
            return alone.sum() + wide.sum() + summed.sum() + self.weight.sum()

    graph = capture(Forms(8, 8), torch.zeros(3, dtype=torch.int32))
    flop = graph.operations.flop[rows(graph, FORWARD, "matmul")].tolist()
    assert flop == [2 * 3 * 8 * 16 * 8, 2 * 8 * 16 * 24, 2 * 16 * 24 * 16]


def test_a_product_without_a_formula_is_named() -> None:
    class Projected(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) @ torch.zeros(self.out_features)

    assert "no FLOP are known of aten.mv.default" in capture(Projected(8, 4), X).source


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("kernel", "arguments"), [("flash", ()), ("efficient", (None, True)), ("cudnn", (None, True))]
)
def test_what_kernels_for_gpus_skip_of_causal_attention_counts_nothing(
    kernel: str, arguments: tuple[Any, ...], causal: bool
) -> None:
    """Of 16 positions the first looks at 1, the last at all: 136 of 256 pairs; 2 products of each forward, 5 backward."""

    class Attention(nn.Module):
        def __init__(self, others: int) -> None:
            super().__init__()
            self.mine, self.others = (nn.Parameter(torch.zeros(2, 4, n, 8)) for n in (16, others))

        def forward(self, _inputs: Tensor) -> Tensor:
            attend = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")
            found = attend(self.mine, self.others, self.others, *arguments, 0.0, causal)[0]
            return found.exp().sum()

    for others, pairs in ((16, 136 if causal else 256), (32, 16 * 32)):
        graph = capture(Attention(others), X)
        product = 2 * 2 * 4 * pairs * 8
        assert graph.operations.flop[rows(graph, FORWARD)].sum() == 2 * product
        assert graph.operations.flop[rows(graph, BACKWARD)].sum() == 5 * product


def test_a_loss_reads_one_probability_of_each_row_and_none_on_the_way_back() -> None:
    labels = torch.zeros(64, dtype=torch.long)
    graph = capture(
        nn.Linear(8, 10_000), torch.zeros(64, 8), lambda out: functional.cross_entropy(out, labels)
    )
    (forward,), (back,) = (rows(graph, phase, "loss") for phase in (FORWARD, BACKWARD))
    assert graph.operations.read_bytes[forward] == 64 * 4 + 64 * 8
    assert graph.operations.read_bytes[back] == 64 * 8 + 4 + 4
    assert graph.operations.written_bytes[back] == 64 * 10_000 * 4


@pytest.mark.parametrize(
    ("layer", "each"),
    [(nn.MaxPool2d(2), 4 + 8), (nn.AvgPool2d(2), 4), (nn.AdaptiveAvgPool2d(3), 4), (nn.AdaptiveMaxPool2d(3), 4 + 8)],
)  # fmt: skip
def test_on_its_way_back_pooling_reads_gradients_and_places_alone(layer: nn.Module, each: int) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), layer)
    graph = capture(model, torch.zeros(3, 1, 6, 6), lambda output: output.exp().sum())
    (row,) = rows(graph, BACKWARD, "pooling")
    assert graph.operations.read_bytes[row] == each * 3 * 2 * 3 * 3


def test_a_looked_up_table_is_not_read_whole() -> None:
    graph = capture(nn.Embedding(1000, 16), torch.zeros(2, 3, dtype=torch.long))
    lookup = rows(graph, FORWARD, "embedding")[0]
    assert graph.operations.read_bytes[lookup] == 6 * 8 + 6 * 16 * 4


@pytest.mark.parametrize("trained", [True, False])
def test_of_a_table_whose_rows_are_summed_those_that_are_looked_up_are_read(trained: bool) -> None:
    model = nn.Sequential(nn.EmbeddingBag(1000, 16, mode="sum"), nn.Linear(16, 2))
    model[0].requires_grad_(trained)
    graph = capture(model, torch.zeros(2, 3, dtype=torch.long))
    lookup = rows(graph, FORWARD, "embedding")[0]
    assert graph.operations.read_bytes[lookup] == 6 * 8 + 2 * 8 + 6 * 16 * 4


def test_scattering_writes_what_it_brings_and_filling_reads_nothing() -> None:
    class Scatters(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            board = torch.zeros_like(self.weight.detach()).index_add_(0, torch.tensor([1, 0]), inputs)
            return (board * self.weight).sum()

    graph = capture(Scatters(8, 1000), torch.zeros(2, 8))
    operations = graph.operations
    fill, scatter = (operations.name.index(f"aten.{name}.default") for name in ("zeros_like", "index_add_"))
    assert (operations.read_bytes[fill], operations.written_bytes[fill]) == (0, 1000 * 8 * 4)
    assert operations.read_bytes[scatter] == 2 * 8 * 4 + 2 * 8 + 2 * 8 * 4
    assert operations.written_bytes[scatter] == 2 * 8 * 4


# ---- parameters ------------------------------------------------------------------------------


class Odd(nn.Module):
    """A frozen layer, an unused one, a tied weight, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.tied.weight
        self.register_buffer("scale", torch.ones(8))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.again(self.tied(self.frozen(inputs)) * self.scale)


def test_frozen_unused_and_tied_parameters_and_buffers() -> None:
    graph = capture(Odd(), X)
    frozen, unused, tied = (named(graph, f"{name}.weight") for name in ("frozen", "unused", "tied"))
    assert not frozen.trainable
    assert frozen.first_use >= 0
    assert (frozen.gradient_ready, frozen.updated, frozen.gradient_bytes) == (-1, -1, 0)
    assert unused.trainable
    assert (unused.first_use, unused.gradient_ready, unused.updated, unused.gradient_bytes) == (-1, -1, -1, 0)
    assert tied.aliases == ("again.weight",)
    assert tied.module == "tied"
    assert tied.gradient_ready > named(graph, "again.bias").gradient_ready
    assert [(buffer.name, buffer.size_bytes) for buffer in graph.buffers] == [("scale", 32)]


def test_layers_that_share_one_dict_of_parameters_share_their_stand_ins() -> None:
    first = nn.Linear(8, 8)
    graph = capture(nn.Sequential(first, copy.copy(first)), X)
    assert [p.aliases for p in graph.parameters] == [("1.weight",), ("1.bias",)]
    assert all(0 <= p.first_use < p.gradient_ready < p.updated for p in graph.parameters)


class Together(nn.Module):
    """Reads its parameters from attributes that hold several."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.ones(8)) for _ in range(3))
        self.pair = self.a, (self.b, "and what is no tensor")
        self.pairs = [(self.c, 1)]

    def forward(self, inputs: Tensor) -> Tensor:
        a, (b, _) = self.pair
        return inputs * a + b * self.pairs[0][0]


def test_parameters_are_found_in_tuples() -> None:
    model = Together()
    before = model.pair, model.pairs[0]
    assert all(p.gradient_ready >= 0 for p in capture(model, X).parameters)
    assert model.pair is before[0]
    assert model.pairs[0] is before[1]


def test_the_optimizer_updates_each_parameter_after_its_gradient() -> None:
    graph = capture(TwoLayers(), X, optimizer=torch.optim.AdamW)
    operations = graph.operations
    for parameter in graph.parameters:
        assert operations.phase[parameter.updated] == OPTIMIZER
        assert graph.modules[operations.module[parameter.updated]] == parameter.module
        assert parameter.first_use < parameter.gradient_ready < parameter.updated
    assert graph.optimizer_bytes == 2 * graph.parameter_bytes + 4 * len(graph.parameters)


def test_accumulation_repeats_forward_and_backward_and_not_the_optimizer() -> None:
    once, thrice = capture(TwoLayers(), X), capture(TwoLayers(), X, accumulate=3)
    assert thrice.flop == 3 * once.flop
    assert thrice.samples == 3 * once.samples
    assert len(rows(thrice, OPTIMIZER)) == len(rows(once, OPTIMIZER))
    steps = thrice.operations.micro_step
    assert sorted(set(steps.tolist())) == [0, 1, 2]
    ready = [parameter.gradient_ready for parameter in thrice.parameters]
    assert all(steps[row] == 2 and thrice.operations.phase[row] == BACKWARD for row in ready)


def test_mixed_precision_computes_in_the_lower_type() -> None:
    graph = capture(TwoLayers(), X, autocast="bfloat16")
    for row in rows(graph, FORWARD, "matmul"):
        signature = graph.signatures[graph.operations.signature[row]]
        assert {argument["dtype"] for argument in signature.arguments if isinstance(argument, dict)} == {
            "bfloat16"
        }
    assert {parameter.dtype for parameter in graph.parameters} == {"float32"}
    assert "autocast to bfloat16" in graph.source


# ---- modules and links -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "inception", "gpt2", "t5", "resnet"])
def test_backward_operations_belong_to_a_forward_operation_of_their_module(name: str) -> None:
    graph = capture(*small(name))
    operations = graph.operations
    for row in rows(graph, BACKWARD):
        forward = operations.forward[row]
        assert 0 <= forward < row
        assert operations.phase[forward] == FORWARD
        if operations.name[row].startswith("aten.convolution_backward"):
            assert operations.name[forward] == "aten.convolution.default"
            assert operations.module[row] == operations.module[forward]
    for row in (*rows(graph, FORWARD), *rows(graph, OPTIMIZER)):
        assert operations.forward[row] == -1


def test_where_operations_belong() -> None:
    graph = capture(TwoLayers(), X)
    products = [graph.modules[graph.operations.module[row]] for row in rows(graph, FORWARD, "matmul")]
    back = [graph.modules[graph.operations.module[row]] for row in rows(graph, BACKWARD, "matmul")]
    assert products == ["lower", "upper"]
    assert back == ["upper", "upper", "lower"]
    (relu,) = rows(graph, FORWARD, "activation")
    assert graph.modules[graph.operations.module[relu]] == ""


@pytest.mark.parametrize(("reentrant", "again"), [(True, 1), (False, 0)])
def test_what_is_computed_again_in_backward_stands_there(reentrant: bool, again: int) -> None:
    """The reentrant way computes the last product again; the other stops before it, since nobody needs it."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(TwoLayers):
        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.lower(inputs)
            return checkpoint(lambda value: self.upper(value.relu()), hidden, use_reentrant=reentrant).sum()

    plain, graph = capture(TwoLayers(), X), capture(Checkpointed(), X)
    assert graph.flop == plain.flop + again * 2 * 4 * 16 * 2
    back = [graph.modules[graph.operations.module[row]] for row in rows(graph, BACKWARD, "matmul")]
    assert back.count("upper") == 2 + again
    assert len(rows(graph, BACKWARD, "activation")) == 2  # relu again, and its gradient


def test_functions_of_the_users_own_are_linked() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(inputs, weight)
            return (inputs * 2) @ weight

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            inputs, weight = ctx.saved_tensors
            return gradient @ weight.t() * 2, (inputs * 2).t() @ gradient

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.weight = nn.Parameter(torch.zeros(8, 3))

        def forward(self, inputs: Tensor) -> Tensor:
            return Double.apply(self.inner(inputs), self.weight).sum()

    graph = capture(Own(), X)
    products = rows(graph, BACKWARD, "matmul")
    first_of_double = graph.operations.name.index("aten.mul.Tensor")
    assert [graph.operations.forward[row] == first_of_double for row in products] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("mlp", ("0", "2", "4")),
        ("gpt2", ("transformer.h.0", "transformer.h.1")),
        ("t5", ("encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1")),
        ("dlrm", ("tables.0", "tables.1", "tables.2", "tables.3")),
    ],
)
def test_blocks_that_repeat(name: str, blocks: tuple[str, ...]) -> None:
    assert capture(*small(name)).blocks == blocks


def test_blocks_that_have_a_name_of_their_own_too() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 2)
            self.net = nn.Sequential(self.fc1, nn.ReLU(), self.fc2)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.net(inputs)

    assert capture(Twice(), X).blocks == ("fc1", "fc2")


# ---- what can be given -----------------------------------------------------------------------


@dataclass
class Answer:
    loss: Tensor
    other: int = 3


class Answers(TwoLayers):
    """Gives its output in any form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, inputs: Tensor, *, weight: float = 1.0) -> Any:
        value = super().forward(inputs) * weight
        total = value.sum()
        forms = {
            "scalar": total,
            "dict": {"loss": total},
            "dataclass": Answer(total),
            "tuple": (value, total),
        }
        return forms[self.form]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("scalar", "the output itself"),
        ("dict", "the output's own"),
        ("dataclass", "the output's own"),
        ("tuple", "the sum of the output"),
    ],
)
def test_where_the_loss_comes_from(form: str, said: str) -> None:
    assert said in capture(Answers(form), X).source


class Recurrent(nn.Module):
    """Reads 7 words each of 3 texts, or the other way round."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(10, 8), layer

    def forward(self, words: Tensor) -> Tensor:
        output = self.layer(self.words(words))
        return (output[0] if isinstance(output, tuple) else output).sum()


@pytest.mark.parametrize(
    ("layer", "samples"),
    [
        (nn.LSTM(8, 8), 3), (nn.LSTM(8, 8, batch_first=True), 7), (nn.Linear(8, 8), 7),
        (nn.TransformerEncoderLayer(8, 2, 16), 3), (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 7),
    ],
)  # fmt: skip
def test_samples_are_counted_where_the_model_has_them(layer: nn.Module, samples: int) -> None:
    words = torch.zeros(7, 3, dtype=torch.long)
    assert capture(Recurrent(layer), words).samples == samples
    assert capture(Recurrent(layer), {"words": words}, accumulate=2).samples == 2 * samples
    assert capture(Recurrent(layer), words, accumulate=2, samples=5).samples == 10


def test_inputs_by_position_and_by_name() -> None:
    model = Answers("scalar")
    plain = capture(model, X)
    for inputs in ((X,), [X], {"inputs": X}, {"inputs": X, "weight": 1.0}):
        assert capture(model, inputs).operations.name == plain.operations.name
    assert capture(model, X, loss=lambda output: output * 2).source.count("the given loss") == 1


def test_a_loss_with_targets_and_a_look_at_the_model() -> None:
    model, labels = TwoLayers(), torch.zeros(4, dtype=torch.long)
    graph = capture(
        model, X, lambda output: functional.cross_entropy(output, labels) + model.lower.weight.pow(2).sum()
    )
    assert rows(graph, FORWARD, "loss")
    assert model.lower.weight.grad is None


def test_parameters_may_be_real_meta_or_fake() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain = capture(TwoLayers(), X)
    with torch.device("meta"):
        meta = capture(
            TwoLayers(), torch.zeros(4, 8), lambda output: functional.mse_loss(output, torch.zeros(4, 2))
        )
    with FakeTensorMode():
        model, inputs = TwoLayers(), torch.zeros(4, 8)
    assert capture(model, inputs).operations.name == plain.operations.name
    assert meta.parameters[0].size_bytes == plain.parameters[0].size_bytes


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_wrapped_and_compiled_models_are_captured_as_they_are_inside() -> None:
    plain = capture(TwoLayers(), X)
    for wrapped in (torch.compile(TwoLayers()), nn.DataParallel(TwoLayers())):
        graph = capture(wrapped, X)
        assert graph.operations.name == plain.operations.name
        assert graph.parameters == plain.parameters


def test_gradients_switched_off_outside_do_not_matter() -> None:
    with torch.no_grad():
        assert capture(TwoLayers(), X).flop == capture(TwoLayers(), X).flop
    with torch.inference_mode():
        assert len(rows(capture(TwoLayers(), X), BACKWARD)) > 0


# ---- optimizers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop]
)
@pytest.mark.parametrize("stepped", [False, True])
def test_an_optimizer_that_is_in_use_is_like_a_new_one_and_left_alone(kind: Any, stepped: bool) -> None:
    model = TwoLayers()
    optimizer = kind(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # patches optimizer.step
    if stepped:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    before = repr(optimizer.state_dict())
    graph = capture(model, X, optimizer=optimizer)
    assert repr(optimizer.state_dict()) == before
    assert optimizer.param_groups[0]["params"][0] is model.lower.weight
    assert graph.operations.name == capture(model, X, optimizer=kind).operations.name


@pytest.mark.parametrize("given", ["new", "stepped", "made"])
def test_where_pytorch_updates_many_parameters_by_one_kernel_that_is_captured(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """It does so on a GPU, and is made to take a processor for one here."""
    module = sys.modules["torch.optim.optimizer"]  # `torch.optim` hides it
    monkeypatch.setattr(module, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    model = TwoLayers()
    optimizer = torch.optim.AdamW(model.parameters())
    if given == "stepped":
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    graph = capture(model, X, optimizer=torch.optim.AdamW if given == "made" else optimizer)
    names = [graph.operations.name[row] for row in rows(graph, OPTIMIZER)]
    assert names
    assert {name.startswith("aten._foreach_") for name in names} == {True}
    assert {parameter.updated for parameter in graph.parameters} == {len(graph.operations) - 1}
    single = capture(model, X, optimizer=torch.optim.AdamW(model.parameters(), foreach=False))
    assert not any("_foreach_" in name for name in single.operations.name)


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(GraphError, match="no parameter of the model"):
        capture(TwoLayers(), X, optimizer=torch.optim.SGD(TwoLayers().parameters()))


@pytest.mark.parametrize(("given", "said"), [(3, "is a int"), (lambda _: 3, "returned a int")])
def test_what_is_no_optimizer_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        capture(TwoLayers(), X, optimizer=given)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(GraphError, match="LBFGS evaluates the model"):
        capture(TwoLayers(), X, optimizer=torch.optim.LBFGS)
