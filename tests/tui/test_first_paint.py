"""What the first paint holds: everything but the scrollbar, so that nobody waits for a second one."""

from __future__ import annotations

from layerdiff.tui.app import LayerdiffApp
from tests.tui.apps import NORM, faulty


class Watched(LayerdiffApp):
    """Keeps the text of the first screen that was drawn."""

    first: list[str] | None = None

    def post_display_hook(self) -> None:
        if self.first is None and self.screen.size:
            self.first = [strip.text for strip in self.screen._compositor.render_strips()]


async def test_the_first_paint_is_the_whole_screen() -> None:
    app = Watched(faulty())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        settled = [strip.text for strip in app.screen._compositor.render_strips()]
    assert app.first is not None
    assert "next origin" in app.first[39]
    assert "sites on view" in app.first[31]
    assert f" ✗ defect at {NORM}" in app.first[1]
    assert "▌ " in "".join(app.first)
    assert [text[:-1] for text in settled] == [text[:-1] for text in app.first]
