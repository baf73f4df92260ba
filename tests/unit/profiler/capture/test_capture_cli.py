"""`hemiola capture` as a user meets it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from capture_samples import MODELS
from cyclopts import App

from hemiola.cli.capture import capture
from hemiola.core.errors import HemiolaError
from hemiola.trace.graph_json import read_graph

TINY = f"{MODELS / 'mlp.py'}:tiny"


class Outcome(NamedTuple):
    error: str
    out: str
    err: str


Hemiola = Callable[..., Outcome]


@pytest.fixture
def hemiola(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Hemiola:
    """Run the verb in this process, in an empty folder, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = App(name="hemiola")
    app.command(capture, name="capture")

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        error = ""
        try:
            app(["capture", *map(str, arguments)], result_action="return_value", exit_on_error=False)
        except HemiolaError as refusal:
            error = str(refusal)
        captured = capsys.readouterr()
        return Outcome(error, captured.out, captured.err)

    return run


def figures(outcome: Outcome) -> dict[str, Any]:
    assert outcome.error == ""
    value: dict[str, Any] = json.loads(outcome.out)
    return value


def test_a_file_and_a_summary(hemiola: Hemiola, tmp_path: Path) -> None:
    done = hemiola(TINY, "-o", "job.graph.json", "--name", "perceptron")
    graph = read_graph(tmp_path / "job.graph.json")
    assert graph.name == "perceptron"
    assert re.search(rf"perceptron.*{len(graph.operations)} operations, 2.22 MFLOP", done.out, re.DOTALL)
    assert "26.12 k parameters in 6 tensors (104.49 kB)" in done.out
    assert "no optimizer state" in done.out
    for word in ("matmul", "view", "0 and 2 more like it", "FLOP", "bytes moved"):
        assert word in done.out
    assert "wrote job.graph.json" in done.err


def test_a_name_is_printed_as_it_is(hemiola: Hemiola) -> None:
    assert "a [red]net[/old] :ram:: " in hemiola(TINY, "--name", "a [red]net[/old] :ram:").out


def test_a_name_need_not_be_text(hemiola: Hemiola, tmp_path: Path) -> None:
    assert "wrote job.json" in hemiola(TINY, "-o", "job.json", "--name", os.fsdecode(b"caf\xe9")).err
    assert read_graph(tmp_path / "job.json").name == "caf\ufffd"


def test_json_is_all_that_is_printed(hemiola: Hemiola, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(
        "import torch\nprint('loading')\n"
        "def make():\n    print('building')\n    return torch.nn.Linear(8, 4), torch.zeros(2, 8)\n"
    )
    done = hemiola("talks.py:make", "--json")
    assert figures(done) | {"source": ""} == {
        "name": "Linear", "operations": 13, "flop": 2 * 2 * 2 * 8 * 4, "parameters": 36, "parameter_tensors": 2,
        "parameter_bytes": 144, "gradient_bytes": 144, "optimizer_bytes": 0, "samples": 2,
        "saved_bytes": figures(done)["saved_bytes"],
        "phases": {
            "forward": {"operations": 3, "flop": 2 * 2 * 8 * 4},
            "backward": {"operations": 8, "flop": 2 * 2 * 8 * 4},
            "optimizer": {"operations": 2, "flop": 0},
        },
        "blocks": [], "source": "",
    }  # fmt: skip
    assert "loading" in done.err
    assert "building" in done.err


def test_a_module_as_well_as_a_file(hemiola: Hemiola, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    (tmp_path / "jobs" / "line.py").write_text(
        "import torch\ndef make(): return torch.nn.Linear(8, 4), (torch.zeros(2, 8),), lambda out: out.mean()\n"
    )
    assert "the given loss" in figures(hemiola("jobs.line:make", "--json"))["source"]


def test_options(hemiola: Hemiola) -> None:
    plain = figures(hemiola(TINY, "--json"))
    much = figures(
        hemiola(
            TINY,
            "--json",
            "--accumulate",
            2,
            "--autocast",
            "bfloat16",
            "--optimizer",
            "adamw",
            "--device",
            "cpu",
            "--samples",
            5,
        )
    )
    assert much["flop"] == 2 * plain["flop"]
    assert much["samples"] == 2 * 5 != 2 * plain["samples"]
    assert much["optimizer_bytes"] > 2 * plain["parameter_bytes"] > plain["optimizer_bytes"] == 0
    assert "AdamW(lr=0.001); 2 micro-steps; autocast to bfloat16" in much["source"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "'nothing' names no function"),
        (["nowhere.py:make"], "there is no file 'nowhere.py'"),
        (["nowhere:make"], "'nowhere' cannot be imported: ModuleNotFoundError.*\n.*\n  hint: name a file"),
        ([f"{MODELS / 'mlp.py'}:huge"], "it has mlp, example, tiny, full"),
        ([f"{MODELS / 'vgg.py'}:vgg16"], "vgg16 returned a Sequential"),
        (["bad.py:fails"], "bad.py:fails failed: ValueError: no weights here\n  at .*bad.py:4, in fails"),
        (["bad.py:wants"], "bad.py:wants failed: TypeError"),
        (["bad.py:asks"], "asks for a tensor's value .*\n  at .*bad.py:9, in forward"),
        (["broken.py:make"], "'broken.py' cannot be imported: SyntaxError"),
        (
            ["lacks.py:make"],
            "No module named 'notransformers'\n  at .*lacks.py:1, in .*\n  hint: install what",
        ),
        (["script.py:make"], "'script.py' cannot be imported: it ends the program\n  at .*script.py:2, in"),
        (["bad.py:ends"], "bad.py:ends ends the program\n  at .*bad.py:11, in ends\n  hint: have it return"),
        (["bad.py:one"], "bad.py:one returned 1 values"),
        ([TINY, "--optimizer", "magic"], "torch.optim has no 'magic'\n  hint: choose one of .*AdamW"),
        ([TINY, "--accumulate", 0], "accumulate is 0"),
        ([TINY, "-o", "no/folder/job.json"], "there is no folder"),
    ],
)
def test_refusals(hemiola: Hemiola, tmp_path: Path, arguments: list[object], said: str) -> None:
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "lacks.py").write_text("import notransformers\n")
    (tmp_path / "script.py").write_text("import sys\nsys.exit()\n")
    (tmp_path / "bad.py").write_text(
        "import torch\n"
        "def one(): return (3,)\n"
        "def fails():\n"
        "    raise ValueError('no weights here')\n"
        "def wants(size): pass\n"
        "class Asks(torch.nn.Linear):\n"
        "    def forward(self, inputs):\n"
        "        value = super().forward(inputs)\n"
        "        return value if value.sum() > 0 else -value\n"
        "def asks(): return Asks(2, 2), torch.zeros(1, 2)\n"
        "def ends(): raise SystemExit\n"
    )
    done = hemiola(*arguments)
    assert re.search(said, done.error), done.error
    assert "hint: " in done.error
    assert done.out == ""


def test_every_example_has_a_full_size(hemiola: Hemiola) -> None:
    layers = {
        "mlp": [(1024, 4096), (4096, 4096), (4096, 4096), (4096, 10)],
        "dlrm": [(13, 512), (512, 256), (256, 128), (128 + 27 * 26 // 2, 1024), (1024, 1024), (1024, 512),
                 (512, 256), (256, 1)],
    }  # fmt: skip
    weights = {name: sum(wide * narrow + narrow for wide, narrow in sizes) for name, sizes in layers.items()}
    parameters = {"mlp": weights["mlp"], "dlrm": weights["dlrm"] + 26 * 100_000 * 128}
    for name, count in parameters.items():
        assert figures(hemiola(f"{MODELS / name}.py:full", "--json"))["parameters"] == count
