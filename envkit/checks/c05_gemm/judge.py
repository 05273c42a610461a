"""C05: is the error of a matrix product the one expected of the promised precision?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import mapping
from envkit.checks.precision_bands import judge_results, read_result

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding


def judge(case: Case) -> Finding:
    """Judge one precision over all sizes. The worst size decides."""
    sizes = case.mapping("sizes")
    return judge_results(case, [read_result(size, mapping(sizes, size)) for size in sizes])
