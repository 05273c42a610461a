"""The questions for a payload that another system runs, and how to match an answer to its question.

The nonce of a question is the digest of its content, so documents for another image, plan, tier or payload have another
nonce. It does not change between exports of the same question; the age of an answer is in the document's own time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envkit.checks import catalog
from envkit.ground import strictyaml, trees
from envkit.ground.canonical import digest_of
from envkit.ground.errors import IntegrityError, UsageError
from envkit.verify.payload import suite_digest
from envkit.verify.spec import spec_of_plan

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.plan.model import BuildPlan

SCHEMA = "envkit.questions/1"
EXIT_MARK = "envkit.payload.exit"
"""Start of the line that a shell prints after the payload; the exit code and the nonce follow."""
KEY = "questions.json"
"""The key of the questions in a ConfigMap's data."""
_NONCE_DIGITS = 32  # 128 bits, as in a nonce of `verify`
_DOCUMENTS = re.compile(r"^---[ \t]*$", re.MULTILINE)  # separates YAML documents
_HINT = "give --questions the file that envkit export wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One image, and the spec to verify it against."""

    name: str
    image: str
    tier: str
    checks: tuple[str, ...]  # ids, in order
    narrowed: bool  # to some checks of the tier
    suite_sha256: str
    spec: Mapping[str, Any]  # without its nonce

    @property
    def nonce(self) -> str:
        """Return the hex digits that identify this question."""
        return digest_of(asdict(self))[:_NONCE_DIGITS]

    def spec_json(self) -> str:
        """Return the spec file that the payload reads."""
        return json.dumps({**self.spec, "nonce": self.nonce}, sort_keys=True)

    def arguments(self, payload: str, spec: str) -> tuple[str, ...]:
        """Return the arguments of `python`; the paths are those inside the image."""
        only = ("--only", ",".join(self.checks)) if self.narrowed else ()
        return (payload, "--spec", spec, "--tier", self.tier, *only)


def question_of(
    plan: BuildPlan, *, name: str, image: str, tier: str | None = None, only: Sequence[str] = ()
) -> Question:
    """Return the question whether an image meets its plan. `tier` None is the plan's own tier.

    Raises:
        UsageError: the tier or a check ID is unknown.
    """
    chosen = tier or plan.smoke.tier
    return Question(
        name=name,
        image=image,
        tier=chosen,
        checks=tuple(entry.id for entry in catalog.select(chosen, only)),
        narrowed=bool(only),
        suite_sha256=suite_digest(),
        spec={key: value for key, value in spec_of_plan(plan).items() if key != "nonce"},
    )


def questions_json(questions: Sequence[Question]) -> str:
    """Return questions as one line of JSON."""
    return json.dumps(
        {"schema": SCHEMA, "questions": [{**asdict(question), "nonce": question.nonce} for question in questions]}
    )


def questions_of(text: str, where: str) -> tuple[Question, ...]:
    """Parse the questions that `questions_json` wrote; `where` is their origin, for errors.

    Raises:
        UsageError: the text has no questions.
        IntegrityError: a question was changed after it was written.
    """
    tree = trees.from_json(text, where, hint=_HINT)
    try:
        if tree["schema"] != SCHEMA:
            raise UsageError(f"{where}: schema is {tree['schema']!r:.80}, not {SCHEMA!r}", hint=_HINT)
        pairs = [(_question(item), str(item["nonce"])) for item in tree["questions"]]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{where} has no questions ({SCHEMA}): {error!r:.200}", hint=_HINT) from error
    for question, nonce in pairs:
        if question.nonce != nonce:
            raise IntegrityError(f"{where}: the question about {question.name!r:.80} was changed", hint=_HINT)
    return tuple(question for question, _ in pairs)


def read_questions(path: Path) -> tuple[Question, ...]:
    """Read the questions from a JSON file, or from a ConfigMap in a file of Kubernetes documents.

    Raises:
        UsageError: the file does not exist, or has no questions.
        IntegrityError: a question was changed after it was written.
    """
    text = strictyaml.text_of(path)
    if text.lstrip().startswith("{"):
        return questions_of(text, str(path))
    for document in _DOCUMENTS.split(text):
        tree = strictyaml.read(document, str(path))
        data = tree.get("data") if isinstance(tree, dict) and tree.get("kind") == "ConfigMap" else None
        if isinstance(data, dict) and isinstance(data.get(KEY), str):
            return questions_of(str(data[KEY]), str(path))
    raise UsageError(f"{path} has no ConfigMap with {KEY}", hint=_HINT)


def _question(item: Any) -> Question:
    texts = {key: item[key] for key in ("name", "image", "tier", "suite_sha256")}
    spec, checks, narrowed = item["spec"], item["checks"], item["narrowed"]
    sound = (
        all(isinstance(value, str) for value in (*texts.values(), *checks))
        and isinstance(checks, list)
        and isinstance(narrowed, bool)
        and isinstance(spec, dict)
    )
    if not sound:
        raise ValueError("a field has the wrong type")
    return Question(**texts, spec=spec, checks=tuple(checks), narrowed=narrowed)
