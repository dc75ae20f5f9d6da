"""A reduction-order analysis as one line of strict JSON; saved/order.schema.json is the contract. ASCII only, as all JSON here."""

from __future__ import annotations

import json
import math

from layerdiff.arithmetic.orders.analysis import OrderReport, to_json
from layerdiff.saved.as_json import strict

_UNKNOWN_IF_NAN = ("zrms", "zmax")


def order_as_json_text(report: OrderReport) -> str:
    """`layerdiff.order/1` as text, one line with its end: non-finite numbers are strings, statistics that do not exist are null."""
    value = to_json(report)
    for analysis in value["analyses"]:
        for name in _UNKNOWN_IF_NAN:
            if math.isnan(analysis[name]):
                analysis[name] = None
    return json.dumps(strict(value), allow_nan=False, ensure_ascii=True) + "\n"
