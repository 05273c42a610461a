"""envkit's own lint rules on a rendered build context, in addition to hadolint's.

`check` runs every rule. A finding is an `error`, or a `warning` if only a later step can fix it: a tag gets its digest
when a registry is queried. Rules on exact artifacts (an explicit list of conda packages, hashes of wheels) apply to
locked builds; without a lock, the rules require one index, strict priority, and no defaults channel.
"""

from __future__ import annotations

from collections.abc import Collection

from envkit.ground.errors import UsageError, shown
from envkit.render import lint_files, lint_image, lint_source
from envkit.render.dockerfile import parse
from envkit.render.lint_model import Context, Finding, Rule
from envkit.render.model import Rendered

RULES: dict[str, Rule] = lint_source.RULES | lint_image.RULES | lint_files.RULES

# Enforced for every template; the other rules are advice for template authors.
UNSAFE = frozenset({"D3", "D7", "D10", "D12", "D18", "D27", "D28", "D34", "D40", "D46", "D54", "D55"})
# A locked build must also install exactly its lock.
UNSAFE_LOCKED = UNSAFE | {"D4", "D5"}


def check(rendered: Rendered, rules: Collection[str] = RULES) -> list[Finding]:
    """Return the findings of these rules, sorted by line; by default of all rules."""
    context = Context(
        files=rendered.files, parsed=parse(rendered.dockerfile), syntax=rendered.syntax, locked=rendered.locked
    )
    findings = [
        Finding(rule=rule, line=line, message=message, severity=severity)
        for rule in rules
        for line, message, severity in RULES[rule](context)
    ]
    return sorted(findings, key=lambda item: (item.line, item.rule))


def refuse_unsafe(rendered: Rendered) -> None:
    """Refuse a Dockerfile that disables protections.

    Raises:
        UsageError: with every such line.
    """
    unsafe = UNSAFE_LOCKED if rendered.locked else UNSAFE
    findings = [item for item in check(rendered, unsafe) if item.severity == "error"]
    if findings:
        raise UsageError(
            f"the Dockerfile of the template breaks a rule: {findings[0]}",
            details=shown([str(item) for item in findings[1:]]),
            hint="envkit render --check lists every finding"
            + ("; envkit build --no-lock builds without a lock" if rendered.locked else ""),
        )
