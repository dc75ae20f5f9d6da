"""The reproduction bundle: what is written, and that its script runs the call again without layerdiff."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from captures.kernels import PRODUCTS, Kernel, product, split_dropped
from layerdiff import Recorder, compare_traces
from layerdiff.errors import ComparisonError
from layerdiff.report import reproduce
from layerdiff.report.bundle import Written, write_bundle
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.file import open_comparison


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.proj = nn.Linear(64, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.proj(x) + 1
        return y


def record(path: Path, model: nn.Module, *args: Any, kernel: AbstractContextManager[Any] | None = None) -> Path:
    with torch.no_grad(), kernel or nullcontext(), Recorder(path, model, operators=True):
        model(*args)
    return path


@pytest.fixture(scope="module")
def dropped(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A kernel that drops a quarter of every sum of one product."""
    folder = tmp_path_factory.mktemp("dropped")
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    target = Product()
    kernel = Kernel(target.proj, PRODUCTS, product(split_dropped))
    return compare_traces(record(folder / "reference.h5", Product(), x), record(folder / "target.h5", target, x, kernel=kernel))


def isolated(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`reproduce.py`, as on a machine without layerdiff: isolated, started elsewhere."""
    command = [sys.executable, "-I", str(folder / "reproduce.py"), *arguments]
    return subprocess.run(command, cwd=folder.parent.parent, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)


def figures(report: str, name: str) -> list[str]:
    """What follows `name` in its first row."""
    return next(line.strip().removeprefix(name).split() for line in report.splitlines() if line.strip().startswith(name))


def test_a_wrong_kernel_is_far_from_float64_and_a_right_one_is_not(dropped: Comparison, tmp_path: Path) -> None:
    (written,) = write_bundle(dropped, tmp_path / "bundle")
    assert Written(tmp_path / "bundle" / "01-proj-aten.mm.default-0", "proj/aten.mm.default#0", None) == written
    done = isolated(written.folder)
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith("aten.mm.default on cpu, torch ")
    assert "run 2 makes the same bits as run 1" in done.stdout
    x, weight = (load_file(written.folder / "operands.safetensors")[key].double() for key in ("t0", "t1"))
    recorded = load_file(written.folder / "recorded.safetensors")["t0"].double()
    worst = (recorded - x @ weight).abs().max().item()
    assert worst > 0.01
    assert f"{worst:.4e}" == figures(done.stdout, "recorded - float64")[0]
    assert float(figures(done.stdout, "this run - float64")[0]) < 1e-5
    assert float(figures(done.stdout, "this run - recorded")[0]) > 0.01


def test_a_clean_call_is_reproduced_bit_for_bit(dropped: Comparison, tmp_path: Path) -> None:
    (written,) = write_bundle(dropped, tmp_path / "bundle", sites=["/aten.add.Tensor#0"])
    done = isolated(written.folder)
    assert 0 == done.returncode
    assert ["0", "0", "0", "the", "same", "bits"] == figures(done.stdout, "this run - recorded")
    assert float(figures(done.stdout, "recorded - float64")[2]) <= 0.5 + 1e-9  # one rounding
    assert "[1] = 1" in done.stdout


def test_the_script_imports_torch_and_safetensors_and_nothing_of_ours(dropped: Comparison, tmp_path: Path) -> None:
    (written,) = write_bundle(dropped, tmp_path / "bundle")
    script = (written.folder / "reproduce.py").read_text()
    assert Path(reproduce.__file__).read_text() == script
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(script))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert {"torch", "safetensors"} == {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert not any(called in script for called in ("eval(", "exec(", "pickle", "torch.load"))


def test_call_json_says_what_differs_from_the_reference(tmp_path: Path) -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))

    class Norm(nn.Module):
        def __init__(self, epsilon: float) -> None:
            super().__init__()
            self.epsilon = epsilon

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)

    made = compare_traces(record(tmp_path / "r.h5", Norm(1e-6), x), record(tmp_path / "t.h5", Norm(1e-3), x))
    kept = open_comparison(made.save(tmp_path / "run.ldiff"))
    (written,) = write_bundle(kept, tmp_path / "bundle", sites=["/aten.add.Tensor#0"])
    call = json.loads((written.folder / "call.json").read_text())
    assert [{"argument": "args[1]", "reference": 1e-6, "target": 1e-3}] == call["reference"]["scalars"]
    assert ("aten.add.Tensor", "aten.add.Tensor") == (call["operator"], call["reference"]["operator"])
    assert {"in[0]": "float32", "out": "float32"} == call["reference"]["dtypes"]
    assert ([4, 1], [1, 1], 0) == tuple(call["operands"]["in[0]"][key] for key in ("shape", "strides", "offset"))
    assert torch.__version__ == call["environment"]["target"]["torch"] == call["environment"]["reference"]["torch"]
    assert "- argument `args[1]` is `0.001`, in the reference `1e-06`\n" in (written.folder / "origin.md").read_text()


class Dtypes(nn.Module):
    """One call a dtype, and operands that lie in ways of their own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (x.bfloat16() @ x.bfloat16().t()).sum()
        x.half() * 3
        torch.arange(7) - 9
        (x > 0).logical_xor(x > 1)
        x.to(torch.float8_e4m3fn).to(torch.float32)
        x.to(torch.float8_e4m3fnuz).to(torch.float16)
        x[1:2].expand(6, -1) + x[:, 3:4]
        y = x.clone()
        y[1:3, 2:4].mul_(0.3)
        y.unfold(0, 3, 1).sin()
        torch.topk(y, 2)
        torch.complex(y, y).exp()
        return torch.cat([y, y])


DTYPES = [
    ("/aten.mm.default#0", "bfloat16"),
    ("/aten.mul.Tensor#0", "float16"),
    ("/aten.sub.Tensor#0", "int64"),
    ("/aten.logical_xor.default#0", "bool"),
    ("/aten._to_copy.default#3", "float8_e4m3fn"),
    ("/aten._to_copy.default#4", "float32"),
    ("/aten._to_copy.default#5", "float8_e4m3fnuz"),
    ("/aten._to_copy.default#6", "float16"),
    ("/aten.add.Tensor#0", "float32"),
    ("/aten.mul_.Tensor#0", "float32"),
    ("/aten.sin.default#0", "float32"),
    ("/aten.topk.default#0", "float32"),
    ("/aten.exp.default#0", "complex64"),
    ("/aten.cat.default#0", "float32"),
]


@pytest.fixture(scope="module")
def dtypes(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("dtypes")
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    record(folder / "t.h5", Dtypes(), x)
    return compare_traces(folder / "t.h5", folder / "t.h5")


@pytest.mark.parametrize(("site", "dtype"), DTYPES)
def test_every_dtype_and_layout_comes_back_bit_for_bit(
    dtypes: Comparison, site: str, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (written,) = write_bundle(dtypes, tmp_path / "bundle", sites=[site])
    assert written.missing is None
    assert 0 == reproduce.main([str(written.folder)])
    said = capsys.readouterr()
    assert "" == said.err
    results = [line for line in said.out.splitlines() if line.startswith("out")]
    assert any(f": {dtype} [" in line for line in results), said.out
    rows = [line for line in said.out.splitlines() if line.strip().startswith("this run - recorded")]
    assert len(results) == len(rows) == sum(line.endswith("the same bits") for line in rows)


def test_operands_lie_as_they_lay(dtypes: Comparison, tmp_path: Path) -> None:
    (written,) = write_bundle(dtypes, tmp_path / "bundle", sites=["/aten.add.Tensor#0"])
    call = reproduce.read_call(written.folder)
    operands = reproduce.read_tensors(written.folder / "operands.safetensors", call["operands"])
    placed = reproduce.laid_out(operands, call["operands"], "cpu")
    assert {"in[0]": (0, 1), "in[1]": (5, 1)} == {position: tensor.stride() for position, tensor in placed.items()}
    assert placed["in[0]"].untyped_storage().data_ptr() == placed["in[1]"].untyped_storage().data_ptr()
    assert all(torch.equal(operands[position], tensor) for position, tensor in placed.items())


def call_of(operator: str, **tensors: Tensor | list[int]) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """A call with named arguments as call.json has it, with its operands."""
    operands = {f"in.{name}": tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    described = {position: {"strides": list(t.stride()), "offset": 0, "memory": i} for i, (position, t) in enumerate(operands.items())}
    pictures = {name: {"tensor": f"in.{name}"} if isinstance(thing, Tensor) else thing for name, thing in tensors.items()}
    call = {"operator": operator, "arguments": {"args": [], "kwargs": pictures}, "operands": described}
    return reproduce.operator_named(operator, frozenset()), call, operands


def test_a_fused_attention_without_a_kernel_in_float64_is_its_formula() -> None:
    q, k, v = (torch.randn(1, 2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    arguments: dict[str, Any] = {"query": q, "key": k, "value": v, "is_causal": True, "scale": 0.25, "compute_log_sumexp": False}
    made = reproduce.run64(*call_of("aten._scaled_dot_product_efficient_attention.default", **arguments, attn_bias=None))
    scores = (q @ k.transpose(-1, -2) * 0.25).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(scores.softmax(-1) @ v, made["out[0]"], rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
def test_a_grouped_product_in_float64_is_a_product_a_group() -> None:
    rows, matrices = torch.arange(12.0).double().reshape(6, 2), torch.arange(12.0).double().reshape(2, 2, 3)
    made = reproduce.run64(*call_of("aten._grouped_mm.default", self=rows, mat2=matrices, offs=torch.tensor([2, 6], dtype=torch.int32)))
    expected = torch.cat([rows[:2] @ matrices[0], rows[2:] @ matrices[1]])
    assert torch.equal(expected, made["out"])


def edited(folder: Path, **changes: Any) -> Path:
    call = json.loads((folder / "call.json").read_text()) | changes
    (folder / "call.json").write_text(json.dumps(call))
    return folder


HOSTILE_OPERATORS = [
    ("aten.from_file.default", "opens a file"),
    ("os.system.default", "only where you trust them"),
    ("aten.mm.default; import os", "is no name of an operator"),
    ("aten.mm", "is no name of an operator"),
    ("aten..default", "is no name of an operator"),
    ("aten.__class__.mro", "is no overload of an operator"),
    ("aten.mm.__call__", "is no overload of an operator"),
    ("aten.no_such.default", "this torch lacks"),
]


@pytest.mark.parametrize(("operator", "reason"), HOSTILE_OPERATORS)
def test_a_name_that_is_no_operator_is_refused(
    dropped: Comparison, operator: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (written,) = write_bundle(dropped, tmp_path / "bundle")
    assert 2 == reproduce.main([str(edited(written.folder, operator=operator))])
    said = capsys.readouterr()
    assert "" == said.out
    assert reason in said.err


def test_an_argument_that_is_no_argument_is_refused(dropped: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (written,) = write_bundle(dropped, tmp_path / "bundle")
    for args, reason in (
        ([{"call": "os.system"}], "cannot be handed over"),
        ([{"dtype": "__builtins__"}], "no dtype"),
        ([{"dtype": "load"}], "no dtype"),
        ([{"tensor": "in[9]"}], "cannot be handed over"),
        ([{}], "cannot be handed over"),
    ):
        assert 2 == reproduce.main([str(edited(written.folder, arguments={"args": args}))])
        assert reason in capsys.readouterr().err
    assert 0 == reproduce.main([str(write_bundle(dropped, tmp_path / "right")[0].folder)])
    right = json.loads((tmp_path / "right" / written.folder.name / "call.json").read_text())
    capsys.readouterr()
    odd: list[dict[str, Any]] = [
        {"arguments": {"args": 3}},
        {"arguments": {"args": [{"tensor": ["x"]}]}},
        {"arguments": {"kwargs": [1]}},
        {"operands": {"in[0]": 3}},
        {"operands": {"in[0]": {"key": "t0", "dtype": "float32", "shape": [1 << 60], "strides": [1]}}},
        {"operands": {"in[0]": {"key": "t9", "dtype": "float32", "shape": [1], "strides": [1]}}},
        {"results": {"out": None}},
        {"format": "other"},
    ]
    for changes in odd:
        assert 2 == reproduce.main([str(edited(written.folder, **(right | changes)))]), changes
        said = capsys.readouterr()
        assert said.err.startswith("reproduce: ") and said.err.count("\n") == 1
    (written.folder / "call.json").write_text("no json")
    assert 2 == reproduce.main([str(written.folder)])


@pytest.mark.parametrize("name", ["../../x", "a\x1b[31m`|<b>\n# x", "\ud800", "", "a" * 5000, "'; import os; '", ".hidden"])
def test_a_hostile_name_stays_data(dropped: Comparison, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = replace(dropped.origins[0], site=name, statement=name, rule=name, value=name, cause=name)
    (written,) = write_bundle(replace(dropped, origins=(origin,)), tmp_path / "bundle")
    assert (tmp_path / "bundle") == written.folder.parent
    assert written.folder.name.startswith("01-") and written.folder.name.isascii() and len(written.folder.name) < 90
    assert name == json.loads((written.folder / "call.json").read_text())["site"]
    assert Path(reproduce.__file__).read_bytes() == (written.folder / "reproduce.py").read_bytes()
    assert 0 == reproduce.main([str(written.folder)])
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_an_origin_without_operands_says_what_is_missing(tmp_path: Path) -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    for name, scale in (("r", 1.0), ("t", 1.5)):
        model = Product()
        with torch.no_grad():
            model.proj.weight *= scale
            with Recorder(tmp_path / f"{name}.h5", model):
                model(x)
    made = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    (written,) = write_bundle(made, tmp_path / "bundle", sites=["proj"])
    assert "record both runs with --operators" in (written.missing or "")
    assert ["origin.md"] == [path.name for path in written.folder.iterdir()]
    assert "--operators" in (written.folder / "origin.md").read_text()


def test_operands_that_were_not_kept_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), Recorder(tmp_path / "t.h5", (model := Product()), operators=True, keep="statistics"):
        model(x)
    made = compare_traces(tmp_path / "t.h5", tmp_path / "t.h5")
    (written,) = write_bundle(made, tmp_path / "bundle", sites=["proj/aten.mm.default#0"])
    assert "in[0]" in (written.missing or "")
    assert 2 == reproduce.main([str(written.folder)])
    assert "not all that it was called with was kept" in capsys.readouterr().err


def test_a_folder_in_use_and_a_site_that_is_not_there_are_errors(dropped: Comparison, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "mine").touch()
    with pytest.raises(ComparisonError, match="holds something already"):
        write_bundle(dropped, tmp_path / "bundle")
    with pytest.raises(ComparisonError, match="has no site 'nowhere'"):
        write_bundle(dropped, tmp_path / "other", sites=["nowhere"])
    with pytest.raises(ComparisonError, match="no origin to bundle"):
        write_bundle(replace(dropped, origins=()), tmp_path / "other")
    assert not (tmp_path / "other").exists()
