"""The operators screen over a real recording: source lines, scalars and producers come from the traces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from layerdiff.compare import compare_traces
from layerdiff.record.recorder import Recorder
from layerdiff.rows.calls.listing import inside
from layerdiff.rows.calls.record import CallRecord, Producers, record_of
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.tui.app import LayerdiffApp
from layerdiff.tui.screens.operators import OperatorsScreen
from layerdiff.tui.screens.tensor import TensorScreen
from tests.models import MiniLlama, tokens

NORM = "layers.1.input_layernorm"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder: Path = tmp_path_factory.mktemp("recorded")
    paths = []
    for name, eps in (("reference", [1e-6, 1e-6]), ("target", [1e-6, 1e-5])):
        model = MiniLlama(eps=eps).eval()
        paths.append(folder / f"{name}.h5")
        with torch.no_grad(), Recorder(paths[-1], model, operators=True):
            model(tokens())
    return compare_traces(*paths)


def row_of(rows: Rows, site: str) -> int:
    return next(int(row) for row in rows.tree.row if rows.names.site(int(rows.tree.place_of[row])) == site)


def test_what_the_traces_say_of_a_call(compared: Comparison) -> None:
    rows, traces = Rows(compared), Traces()
    add = row_of(rows, f"{NORM}/aten.add.Tensor#0")
    record = record_of(traces, Producers(), compared, add)
    reference, target = record.reference, record.target
    assert isinstance(reference, CallRecord) and isinstance(target, CallRecord)
    assert (("[1] 1e-06",), ("[1] 1e-05",)) == (reference.scalars, target.scalars)
    assert reference.stack == target.stack and "forward" in reference.stack
    assert {"in[0]": f"{NORM}/aten.mean.dim#0"} == dict(reference.made_by)
    last = inside(rows, row_of(rows, NORM))[-1]
    made = record_of(traces, Producers(), compared, last).target
    assert isinstance(made, CallRecord)
    assert f"{NORM}.weight" in made.made_by.values()
    traces.close()


async def test_from_the_layer_to_the_bits(compared: Comparison) -> None:
    app = LayerdiffApp(compared)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("slash", *"input_layernorm/aten.add", "enter", "G", "enter", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.screen, OperatorsScreen)
        text = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert "scalars   reference [1] 1e-06" in text
        assert "          target    [1] 1e-05" in text
        await pilot.press("v")
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.screen, TensorScreen)
        examined = app.screen.examined
        assert examined is not None and examined.numbers is not None
        assert (14, (2, 7, 1)) == (examined.numbers.count, examined.tensor.shape)
