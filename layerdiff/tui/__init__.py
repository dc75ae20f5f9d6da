"""The terminal, on textual: `layerdiff.tui.app.LayerdiffApp`.

The app only wires; a screen or a widget is one file with its own style sheet. Everything that is shown is
worded by `rows`. Nothing here imports torch, and thread workers touch no widget: they post messages.
"""
