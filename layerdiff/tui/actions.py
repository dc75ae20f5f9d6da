"""Everything a user can do on each screen, once: keys, footer, help and command palette all read this."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from textual.binding import Binding, BindingType


class Action(NamedTuple):
    """One thing to do."""

    keys: str
    """As textual names them, separated by commas."""
    name: str
    """The method `action_<name>` of the screen; arguments as textual writes them."""
    key: str
    """As a person reads it."""
    short: str
    """For the footer; empty where it is not shown there."""
    long: str


def bindings(actions: Iterable[Action]) -> list[BindingType]:
    """As textual wants them; the footer is our own. Tab is asked for before focus moves on by it."""
    return [Binding(action.keys, action.name, action.long, show=False, priority="tab" in action.keys) for action in actions]


_DARK: Final = Action("d", "dark", "d", "", "Light or dark")
_CLOSER: Final = (
    _DARK,
    Action("question_mark", "help", "?", "help", "Keys and words of this screen"),
    Action("escape,backspace", "back", "esc", "back", "Back to where this was opened"),
)
"""On every screen that was opened from another to look closer."""

LAYERS_ACTIONS: Final = (
    Action("n", "next_origin", "n", "next origin", "Go to the next origin"),
    Action("N,p", "previous_origin", "N p", "", "Go to the origin before"),
    Action("f", "first_origin", "f", "first", "Go to the first origin"),
    Action("enter", "open", "enter", "open", "Unfold; where nothing unfolds, the operator calls inside, or the values"),
    Action("right,l", "unfold", "→ l", "", "Unfold, or go to the first call inside"),
    Action("left,h", "fold", "← h", "", "Fold, or go to the enclosing call"),
    Action("space", "fold_or_unfold", "space", "", "Fold or unfold"),
    Action("x", "toggle_all", "x", "", "Unfold everything, or back to the first view"),
    Action("slash", "search", "/", "search", "Search sites by a part of the name or a glob (*, ?)"),
    Action("t", "profile", "t", "profile", "Judge by the other profile: strict, relaxed"),
    Action("s", "sort", "s", "sort", "Sort: execution order, largest difference, furthest over what is allowed"),
    Action("o", "only_origins", "o", "only origins", "List origins only, or all sites again"),
    Action("right_square_bracket", "next_call", "]", "", "The same site in the next step or call"),
    Action("left_square_bracket", "previous_call", "[", "", "The same site in the step or call before"),
    Action("c", "calls", "c", "", "The operator calls inside the selected module"),
    Action("O", "order", "O", "", "How the selected operator call added up: a defect, or another order of the same sum"),
    Action("r", "ranks", "r", "", "Which rank holds what of the selected site, and which rank is off; the collectives inside it"),
    Action("a", "details", "a", "", "All that is known of the selected site"),
    Action("i", "about", "i", "notices", "Notices, alignment, calls without a partner, both environments"),
    Action("e", "report", "e", "report", "The report as it would be filed"),
    Action("v", "values", "v", "values", "The values of the selected site: numbers, picture, worst elements, any element"),
    _DARK,
    Action("question_mark", "help", "?", "help", "Keys, columns and verdicts"),
    Action("escape", "back", "esc", "", "Stop comparing and keep what is there; leave a search"),
)
"""In the order of the footer and of the help."""

TENSOR_ACTIONS: Final = (
    Action("1", "pane('numbers')", "1", "", "The numbers of this pair of values, and how far elements are apart in ulps"),
    Action("2", "pane('picture')", "2", "", "The picture of the difference"),
    Action("3", "pane('worst')", "3", "worst", "The worst elements, with their bits"),
    Action("4", "pane('profile')", "4", "profile", "The difference along each axis"),
    Action("5", "pane('grid')", "5", "grid", "The values themselves"),
    Action("tab", "next_pane", "tab", "next pane", "To the next pane"),
    Action("shift+tab", "previous_pane", "⇧tab", "", "To the pane before"),
    Action("enter", "open", "enter", "to grid", "Show the chosen element, cell or index among the values"),
    Action("slash", "go_to", "/", "index", "Go to an element by its index: 0,3,17"),
    Action("x", "shown", "x", "", "What the grid shows: reference, target and difference, or one of them"),
    Action("right_square_bracket", "next_value", "]", "next value", "The next value of this site"),
    Action("left_square_bracket", "previous_value", "[", "", "The value of this site before"),
    Action("c", "calls", "c", "calls", "The operator calls around this value"),
    Action("o", "order", "o", "", "How this operator call added up: a defect, or another order of the same sum"),
    Action("r", "ranks", "r", "", "Which rank holds what of this site's values, and which rank is off"),
    Action("R", "next_rank", "R", "", "Of a value of ranks: all together, then what each rank holds by itself"),
    *_CLOSER,
)
"""On the tensor screen."""

OPERATOR_ACTIONS: Final = (
    Action("n", "next_origin", "n", "next origin", "Go to the next origin"),
    Action("N,p", "previous_origin", "N p", "", "Go to the origin before"),
    Action("enter", "open", "enter", "open", "The values of the chosen call; of a module, its own calls"),
    Action("v", "values", "v", "values", "The values of the chosen call"),
    Action("u", "outer", "u", "outer", "The calls of the enclosing module"),
    Action("o", "order", "o", "order", "How the chosen call added up: a defect, or another order of the same sum"),
    Action("r", "ranks", "r", "", "Which rank holds what of the chosen call's values, and which rank is off"),
    Action("a", "details", "a", "all known", "All that is known of the chosen call"),
    *_CLOSER,
)
"""On the operators screen."""

ORDER_ACTIONS: Final = (
    Action("tab,p", "next_side", "tab p", "side", "Both together, the reference, the target"),
    Action("shift+tab", "previous_side", "⇧tab", "", "To the side before"),
    Action("n", "next_part", "n", "next part", "Scroll to the next part of the text"),
    Action("N", "previous_part", "N", "", "Scroll to the part before"),
    *_CLOSER,
)
"""On the order screen."""

RANKS_ACTIONS: Final = (
    Action("n", "next_part", "n", "next value", "Scroll to the next value, then to the collectives"),
    Action("N,p", "previous_part", "N p", "", "Scroll to the value before"),
    Action("right_square_bracket", "next_site", "]", "next site", "The next site with values of ranks"),
    Action("left_square_bracket", "previous_site", "[", "site before", "The site with values of ranks before"),
    *_CLOSER,
)
"""On the ranks screen."""

MOVES: Final = (
    ("↑ ↓  k j", "one line"),
    ("PgUp PgDn", "one page"),
    ("Home End  g G", "first and last line"),
    ("mouse", "click selects, on an arrow folds, twice opens; on the curve jumps; the wheel scrolls"),
    ("ctrl+p", "command palette"),
    ("q", "leave; nothing is lost"),
)
