"""envkit's own lint: the rules on a rendered build context that no outside tool checks, each under its id.

`check` runs every rule. A finding is an `error`, or a `warning` where what is missing is not yet known: a tag without
a digest before a registry was asked. Rules on exact artifacts (an explicit list of conda packages, hashes of wheels)
hold for locked builds; without a lock a plan promises one index, strict priority, and no defaults channel.
"""

from __future__ import annotations

from collections.abc import Collection

from envkit.ground.errors import UsageError, shown
from envkit.render import lint_files, lint_image, lint_source
from envkit.render.dockerfile import parse
from envkit.render.lint_model import Context, Finding, Rule
from envkit.render.model import Rendered

RULES: dict[str, Rule] = lint_source.RULES | lint_image.RULES | lint_files.RULES

# No Dockerfile may break these rules, from any template; the other rules are advice for template authors.
UNSAFE = frozenset({"D3", "D7", "D10", "D12", "D18", "D27", "D28", "D34", "D40", "D46", "D54", "D55"})
# In a locked build it has to install the lock, too.
UNSAFE_LOCKED = UNSAFE | {"D4", "D5"}


def check(made: Rendered, rules: Collection[str] = RULES) -> list[Finding]:
    """What these rules find, by line; all rules unless some are named."""
    context = Context(files=made.files, parsed=parse(made.dockerfile), flavour=made.flavour, locked=made.locked)
    findings = [
        Finding(rule=rule, line=line, message=message, severity=severity)
        for rule in rules
        for line, message, severity in RULES[rule](context)
    ]
    return sorted(findings, key=lambda item: (item.line, item.rule))


def refuse_unsafe(made: Rendered) -> None:
    """Stop a template that switches protections off.

    Raises:
        UsageError: naming every such line.
    """
    unsafe = UNSAFE_LOCKED if made.locked else UNSAFE
    findings = [item for item in check(made, unsafe) if item.severity == "error"]
    if findings:
        raise UsageError(
            f"the Dockerfile of the template breaks a rule: {findings[0]}",
            details=shown([str(item) for item in findings[1:]]),
            hint="envkit render --check lists every finding"
            + ("; envkit build --no-lock builds without a lock" if made.locked else ""),
        )
