"""What a judge gets: one observation, and what the finding on it will carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from envkit.checks import observed, thresholds
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec
    from envkit.checks.thresholds import Threshold


class Case:
    """One observation for a judge, with the spec and the payload's `env`.

    A judge names its rule (`use`, `rule`), reads fields of the observation and numbers of the rule, and returns one of
    `passed`, `warn`, `fail`, `skip`, `inconclusive` and `error`. That finding has the rule, the metric and the derived
    values that the case has by then, so what a judge states later is missing from its earlier findings.

    The readers of fields raise MalformedError if the field is missing or has another type.
    """

    __slots__ = ("_derived", "_metric", "_row", "_rule", "env", "observation", "observed", "spec")

    def __init__(self, observation: Observation, spec: Spec, env: Env) -> None:
        self.observation = observation
        self.spec = spec
        self.env = env
        self.observed = observed.mapping(observation, "observed")
        self._row = ""
        self._rule: Mapping[str, Any] = {}
        self._metric: Mapping[str, Any] | None = None
        self._derived: dict[str, Any] = {}

    def blank(self) -> Case:
        """Return a case of the same observation without rule, metric and derived values."""
        return Case(self.observation, self.spec, self.env)

    @property
    def check(self) -> str:
        """The check's ID: `C10` of `C10.h2d_pinned_64MiB`."""
        return str(self.observation["id"]).partition(".")[0]

    @property
    def part(self) -> str:
        """What follows the check's ID: `h2d_pinned_64MiB` of `C10.h2d_pinned_64MiB`, empty for `C10`."""
        return str(self.observation["id"]).partition(".")[2]

    @property
    def kind(self) -> str:
        """The first word of the part: `bench` of `C14.bench.cnn.fp16`."""
        return self.part.partition(".")[0]

    @property
    def subject(self) -> str:
        """What was measured: `image`, `cpu`, `gpu:0`."""
        return str(self.observation["subject"])

    def by_part(self, judges: Mapping[str, Judge]) -> Finding:
        """Judge with the function for the observation's part; raises MalformedError if there is none."""
        judge = judges.get(self.part)
        if judge is None:
            raise observed.MalformedError(f"no rule is known for {self.observation['id']}")
        return judge(self)

    def value(self, key: str) -> float:
        """Return the finite number at `key` of what was observed."""
        return observed.number(self.observed, key)

    def optional(self, key: str) -> float | None:
        """Return the finite number at `key`, None if it is absent or null."""
        return observed.optional_number(self.observed, key)

    def text(self, key: str) -> str:
        """Return the string at `key`."""
        return observed.text(self.observed, key)

    def flag(self, key: str) -> bool:
        """Return the boolean at `key`."""
        return observed.flag(self.observed, key)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return the object at `key`."""
        return observed.mapping(self.observed, key)

    def strings(self, key: str) -> list[str]:
        """Return the list of strings at `key`."""
        return observed.strings(self.observed, key)

    def objects(self, key: str, what: str = "objects") -> list[Mapping[str, Any]]:
        """Return the list of objects at `key`; `what` are the objects, for the error."""
        return observed.objects(self.observed, key, what)

    def use(self, name: str, **changed: Any) -> Threshold:
        """Judge by a row of the thresholds, and return it. The finding has the row with the fields in `changed`."""
        row = thresholds.load().row(name)
        self._row, self._rule = name, row.record(**changed)
        return row

    def rule(self, kind: str, /, **values: Any) -> None:
        """Judge by a rule without a row: `equals`, or `informs` for what never decides."""
        self._rule = {"type": kind, **values}

    def amend(self, **changed: Any) -> None:
        """Replace fields of the rule, such as `gates`."""
        self._rule = {**self._rule, **changed}

    def number(self, key: str, row: str = "") -> float:
        """Return a number of the row in use, or of another `row`."""
        return thresholds.load().row(row or self._row).number(key)

    def metric(self, name: str, value: float | None, unit: str, better: str) -> None:
        """Set the number that stands for the observation; `better` is 'higher', 'lower' or 'equal'."""
        self._metric = {"name": name, "value": value, "unit": unit, "better": better}

    def derive(self, **values: Any) -> None:
        """Keep values that were computed from the observation."""
        self._derived |= values

    def finding(self, verdict: Verdict, code: str | None, message: str, *advice: str) -> Finding:
        """Return a finding with a computed verdict; a PASS has no code. `advice` are lines a user can act on."""
        return Finding(verdict, message, code, advice, self._rule, self._metric, dict(self._derived))

    def passed(self, message: str, *advice: str) -> Finding:
        """Return PASS."""
        return self.finding(Verdict.PASS, None, message, *advice)

    def warn(self, code: str, message: str, *advice: str) -> Finding:
        """Return WARN."""
        return self.finding(Verdict.WARN, code, message, *advice)

    def fail(self, code: str, message: str, *advice: str) -> Finding:
        """Return FAIL."""
        return self.finding(Verdict.FAIL, code, message, *advice)

    def skip(self, code: str, message: str, *advice: str) -> Finding:
        """Return SKIP: the check does not apply here."""
        return self.finding(Verdict.SKIP, code, message, *advice)

    def inconclusive(self, code: str, message: str, *advice: str) -> Finding:
        """Return INCONCLUSIVE: the check applies, and this run does not decide it."""
        return self.finding(Verdict.INCONCLUSIVE, code, message, *advice)

    def error(self, code: str, message: str, *advice: str) -> Finding:
        """Return ERROR: the check itself did not work."""
        return self.finding(Verdict.ERROR, code, message, *advice)


Judge = Callable[[Case], Finding]
"""The type of a check's `judge`."""
