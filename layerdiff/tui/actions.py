"""Everything a user can do on the layers screen, once: keys, footer, help and command palette all read this."""

from __future__ import annotations

from typing import Final, NamedTuple


class Action(NamedTuple):
    """One thing to do."""

    keys: str
    """As textual names them, separated by commas."""
    name: str
    """The method `action_<name>` of the layers screen."""
    key: str
    """As a person reads it."""
    short: str
    """For the footer; empty where it is not shown there."""
    long: str


ACTIONS: Final = (
    Action("n", "next_origin", "n", "next origin", "Go to the next origin"),
    Action("N,p", "previous_origin", "N p", "", "Go to the origin before"),
    Action("f", "first_origin", "f", "first", "Go to the first origin"),
    Action("enter", "open", "enter", "open", "Unfold, or show all that is known of a site"),
    Action("right,l", "unfold", "→ l", "", "Unfold, or go to the first call inside"),
    Action("left,h", "fold", "← h", "", "Fold, or go to the enclosing call"),
    Action("space", "fold_or_unfold", "space", "", "Fold or unfold"),
    Action("x", "toggle_all", "x", "", "Unfold everything, or back to the first view"),
    Action("slash", "search", "/", "search", "Search sites: a part of the name, or a glob with * ? ["),
    Action("t", "profile", "t", "profile", "Judge by the other profile: strict, relaxed"),
    Action("s", "sort", "s", "sort", "Sort: execution order, largest difference, furthest over what is allowed"),
    Action("o", "only_origins", "o", "only origins", "List origins only, or all sites again"),
    Action("right_square_bracket", "next_call", "]", "", "The same site in the next step or call"),
    Action("left_square_bracket", "previous_call", "[", "", "The same site in the step or call before"),
    Action("v", "details", "v", "", "All that is known of the selected site"),
    Action("i", "about", "i", "notices", "Notices, alignment, calls without a partner, both environments"),
    Action("e", "report", "e", "report", "The report as it would be filed"),
    Action("d", "dark", "d", "", "Light or dark"),
    Action("question_mark", "help", "?", "help", "Keys, columns and verdicts"),
    Action("escape", "back", "esc", "", "Stop comparing and keep what is there; leave a search"),
)
"""In the order of the footer and of the help."""

MOVES: Final = (
    ("↑ ↓  k j", "one line"),
    ("PgUp PgDn", "one page"),
    ("Home End  g G", "first and last line"),
    ("mouse", "click selects, on an arrow folds, twice opens; on the curve jumps; the wheel scrolls"),
    ("ctrl+p", "command palette"),
    ("q", "leave; nothing is lost"),
)
