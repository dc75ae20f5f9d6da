"""A comparison as JUnit XML, for CI systems that show test results.

One test case for each site with an origin and for each notice that is a defect, and one summary that
always passes: a suite without a case is read as a broken job by most of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.report import facts
from layerdiff.rows.cells import visible
from layerdiff.rows.figures import count, exact
from layerdiff.rows.sites.header import judged_by
from layerdiff.saved.comparison import Comparison


def as_junit(comparison: Comparison) -> str:
    """The comparison as JUnit XML, ASCII only; it has failures exactly where `defect` is true."""
    cases = [_summary(comparison)]
    cases += [_notice_case(notice) for notice in comparison.notices if notice.defect]
    cases += [_site_case(comparison, site, origins) for site, origins in facts.origins_by_site(comparison).items()]
    failures = sum(case.find("failure") is not None for case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "skipped": "0"}
    suites = ElementTree.Element("testsuites", {"name": "layerdiff", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "layerdiff", **counts})
    suite.extend(cases)
    ElementTree.indent(suites)
    # as ASCII, whatever the locale of whoever prints it
    encoded: bytes = ElementTree.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return encoded.decode("ascii") + "\n"


def _safe(lines: str | Iterable[str]) -> str:
    """Only characters that XML 1.0 allows."""
    return visible(lines) if isinstance(lines, str) else "\n".join(visible(line) for line in lines)


def _case(name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", {"classname": "layerdiff", "name": _safe(name)})


def _summary(comparison: Comparison) -> ElementTree.Element:
    case = _case("summary")
    lines = [
        facts.headline(comparison),
        *(f"{name}: {side.path} {side.label}" for name, side in comparison.sides),
        f"profile: {comparison.profile.get('name', 'custom')}",
        *([judged_by(comparison) or ""] if judged_by(comparison) else []),
        f"paired: {count(comparison.alignment.paired)} calls",
        *(f"{verdict.label}: {count(number)}" for verdict, number in facts.verdict_counts(comparison)),
        *(f"notice {notice.kind}: {notice.statement}" for notice in comparison.notices),
    ]
    ElementTree.SubElement(case, "system-out").text = _safe(lines)
    return case


def _notice_case(notice: Notice) -> ElementTree.Element:
    case = _case(f"{notice.kind}{'' if notice.site is None else ' at ' + facts.site_name(notice.site)}")
    failure = ElementTree.SubElement(case, "failure", {"type": _safe(notice.kind), "message": _safe(notice.statement)})
    failure.text = _safe(notice.statement)
    return case


def _site_case(comparison: Comparison, site: str, origins: list[Origin]) -> ElementTree.Element:
    case = _case(facts.site_name(site))
    blamed = [origin for origin in origins if origin.defect]
    body = _safe(line for origin in origins for line in _lines(comparison, origin))
    if blamed:
        attributes = {"type": blamed[0].verdict.label, "message": _safe(blamed[0].statement)}
        ElementTree.SubElement(case, "failure", attributes).text = body
    else:
        ElementTree.SubElement(case, "system-out").text = body
    return case


def _lines(comparison: Comparison, origin: Origin) -> list[str]:
    lines = [f"{origin.verdict.label}: {origin.statement}", f"{facts.where(origin)}, value {origin.value}", facts.measured_against(origin)]
    lines += [f"{key}: {value}" for key, value in facts.flat(origin.evidence).items()]
    worst = facts.worst_of(comparison, origin.row)
    if worst is not None and worst.index is not None:
        lines.append(f"largest |target - reference| {exact(worst.max_abs)} at index {list(worst.index)} of {list(worst.shape)}")
    return lines
