"""Draw the README's picture anew: `python docs/picture.py` writes docs/layers.svg from the capture `epsilon`."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

os.environ["COLORTERM"] = "truecolor"  # before Textual looks

from layerdiff.compare import compare_traces
from layerdiff.tui.app import LayerdiffApp

HOME = Path(__file__).parent


async def draw() -> str:
    """The Layers screen at 120x34, with the origin selected."""
    capture = HOME.parent / "captures" / "epsilon"
    app = LayerdiffApp(compare_traces(capture / "reference.h5", capture / "target.h5"))
    async with app.run_test(size=(120, 34)) as pilot:
        await pilot.pause()
        await pilot.press("f")
        await pilot.pause(0.3)
        return app.export_screenshot(title="layerdiff reference.h5 target.h5")


if __name__ == "__main__":
    drawn = asyncio.run(draw())
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.S).replace(
        "Fira Code", "ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono"
    )
    (HOME / "layers.svg").write_text(drawn)
