"""What is loaded when: a static graph of imports cannot tell a deferred import from an eager one, so processes are asked."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import layerdiff

PACKAGE = Path(layerdiff.__file__).parent
HEAVY = ("torch", "transformers", "textual", "h5py", "numpy", "rich")


def loaded(code: str) -> set[str]:
    """Top-level and layerdiff modules in `sys.modules` after `code` ran in a fresh interpreter."""
    script = f"import sys, json\n{code}\nprint('\\n' + json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    names = json.loads(done.stdout.splitlines()[-1])
    return {name if name.startswith("layerdiff") else name.partition(".")[0] for name in names}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded("import layerdiff").isdisjoint(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    code = "from layerdiff.cli.app import app\ntry:\n    app(['--help'])\nexcept SystemExit: pass"
    assert loaded(code).isdisjoint(HEAVY)


def test_opening_a_saved_comparison_loads_what_reads_it_alone(tmp_path: Path) -> None:
    from layerdiff.saved.file import save
    from tests.comparisons import comparison

    path = save(comparison(layers=2), tmp_path / "x.ldiff")
    names = loaded(f"from layerdiff.saved.file import open_comparison\nopen_comparison({str(path)!r})")
    assert names.isdisjoint({"torch", "textual", "rich", "layerdiff.compare", "layerdiff.trace.reader", "layerdiff.align.aligning"})


@pytest.mark.parametrize(
    "module", ["layerdiff.compare", "layerdiff.tui.app", "layerdiff.text.summary", "layerdiff.report.formats", "layerdiff.saved.file"]
)
def test_comparing_and_browsing_do_not_load_torch(module: str) -> None:
    assert loaded(f"import {module}").isdisjoint({"torch", "transformers"})


@pytest.mark.parametrize("module", ["layerdiff.compare", "layerdiff.text.summary", "layerdiff.report.formats", "layerdiff.assertion"])
def test_only_the_terminal_loads_textual(module: str) -> None:
    assert "textual" not in loaded(f"import {module}")


def test_a_diff_loads_neither_textual_nor_torch(tmp_path: Path) -> None:
    from layerdiff.saved.file import save
    from tests.comparisons import comparison

    path = save(comparison(layers=2), tmp_path / "x.ldiff")
    code = f"from layerdiff.cli.app import app\ntry:\n    app(['judge', {str(path)!r}])\nexcept SystemExit: pass"
    names = loaded(code)
    assert "layerdiff.saved.file" in names
    assert names.isdisjoint({"torch", "textual"})


def test_public_names() -> None:
    assert layerdiff.__all__ == [
        "Comparison",
        "Recorder",
        "__version__",
        "assert_same",
        "compare_traces",
        "open_comparison",
        "open_trace",
        "order_of_pair",
        "order_of_trace",
        "probe",
        "register_contract",
    ]
    for name in layerdiff.__all__:
        assert getattr(layerdiff, name) is not None
        assert name in dir(layerdiff)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'compare_trace'"):
        _ = layerdiff.compare_trace


def test_no_public_name_is_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules([str(PACKAGE)])}
    assert modules.isdisjoint(layerdiff.__all__)


def test_no_file_is_named_like_a_module_of_the_standard_library() -> None:
    files = {path.stem for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__")}
    assert files & sys.stdlib_module_names == set()


def test_no_vague_names() -> None:
    assert {path.stem for path in PACKAGE.rglob("*.py")} & {"utils", "util", "helpers", "helper", "common", "misc"} == set()


def test_every_module_has_a_docstring_and_imports() -> None:
    without_torch = [path for path in PACKAGE.rglob("*.py") if "record" not in path.parts and path.name != "__main__.py"]
    for path in without_torch:
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        assert import_module(name).__doc__, name


def test_version_is_the_one_of_the_distribution() -> None:
    text = (PACKAGE.parent / "pyproject.toml").read_text()
    assert f'version = "{layerdiff.__version__}"' in text
