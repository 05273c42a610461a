"""Lines of a Dockerfile of which a part is lost, or whose variables Docker does not expand."""

from pathlib import Path

import pytest

from envkit.facts.load import load as load_facts
from envkit.project.context import context_of
from envkit.project.definition import Drafted, draft

FACTS = load_facts()


def drafted(folder: Path, *lines: str) -> Drafted:
    (folder / "Dockerfile").write_text("\n".join(("FROM python:3.11-slim", *lines)) + "\n")
    return draft("Dockerfile", folder, FACTS)


def values(made: Drafted, field: str) -> list[str]:
    return [setting.value for setting in made.taken if setting.field == field]


def lost(made: Drafted) -> list[str]:
    return [row.line.text for row in made.skipped if not row.harmless]


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ('CMD ["sh", "-c", "serve --port ${PORT}"]', "command", '["sh", "-c", "serve --port ${PORT}"]'),
        ('CMD ["serve", "$PORT"]', "command", '["serve", "$PORT"]'),
        ('ENTRYPOINT ["bash", "-c", "exec $PORT \\"$@\\""]', "entrypoint", '["bash", "-c", "exec $PORT \\"$@\\""]'),
    ],
)
def test_what_runs_in_the_container_keeps_its_variables(line: str, field: str, value: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, "ENV PORT=8080", line)
    assert values(made, field) == [value]


@pytest.mark.parametrize(
    ("line", "field", "kept", "gone"),
    [
        ('VOLUME ["/var/lib/app", "/app/config"]', "volumes", ["/app/config"], ["VOLUME /var/lib/app"]),
        ("EXPOSE 8000 99999 9000", "ports", ["8000", "9000"], ["EXPOSE 99999"]),
        ("COPY a.py missing.py /srv/", "copy", ['["a.py", "/srv/"]'], ["COPY missing.py /srv/"]),
        ("ENV A=1 B=$(date) C=2", "env", ["A=1", "C=2"], ["ENV B=$(date)"]),
        ('ENV A="x y" B="$(dirname $(which x))/.." C=${D:-z}', "env", ["A=x y", "C=z"], None),
    ],
)
def test_a_part_that_is_lost_does_not_lose_the_line(
    line: str, field: str, kept: list[str], gone: list[str] | None, tmp_path: Path
) -> None:
    (tmp_path / "a.py").touch()
    made = drafted(tmp_path, line)
    assert values(made, field) == kept
    assert lost(made) == (gone or ['ENV B="$(dirname $(which x))/.."'])


@pytest.mark.parametrize("package", ["ros-humble-desktop", "ros-noetic-cv-bridge", "ros-melodic-ros-base"])
def test_packages_of_other_repositories_are_lost(package: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, f"RUN apt-get update && apt-get install -y git {package} ros-desktop")
    assert values(made, "apt") == ["git", "ros-desktop"]
    assert lost(made) == [package]


def test_a_variable_of_the_build_is_not_the_templates(tmp_path: Path) -> None:
    made = drafted(tmp_path, "ARG TORCH=2.6.0", "RUN pip install torch==${TORCH}")
    assert [(row.line.text, row.harmless) for row in made.skipped] == [("ARG TORCH=2.6.0", True)]
    assert "variable of the build" in made.skipped[0].why
    assert values(made, "torch") == ["==2.6.0"]


@pytest.mark.parametrize(
    ("compose", "files", "expected"),
    [
        # The Compose file names the folder that the Dockerfile was moved to.
        ("services: {a: {build: {context: ., dockerfile: Dockerfile}}}", ["app.py", "pyproject.toml"], "."),
        ("services: {a: {build: .}}", ["app.py", "pyproject.toml"], "."),
        ("services: {a: {build: .}}", ["docker/app.py", "docker/pyproject.toml"], "docker"),
        ("services: {a: {build: {context: .., dockerfile: docker/Dockerfile}}}", ["app.py", "pyproject.toml"], "."),
        ("services: {a: {build: .}}", ["app.py"], "docker"),
    ],
)
def test_the_context_has_the_files_that_are_copied(
    compose: str, files: list[str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "docker").mkdir()
    for file in files:
        (tmp_path / file).touch()
    (tmp_path / "docker" / "compose.yml").write_text(compose + "\n")
    (tmp_path / "docker" / "Dockerfile").write_text("FROM python:3.11\nCOPY app.py pyproject.toml /app/\n")
    found = context_of(tmp_path / "docker" / "Dockerfile").folder
    assert found.resolve() == (tmp_path / expected).resolve()


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        ("COPY --from=builder /app /app", ['[".", "/app"]']),
        ("COPY --from=builder --chown=1000:1000 /app /srv/app", ['[".", "/srv/app"]']),
        ("COPY --from=0 /app /app", ['[".", "/app"]']),
        ("COPY --from=Builder /opt/venv /opt/venv", []),
    ],
)
def test_the_projects_files_of_a_builder_are_copied(copy: str, expected: list[str], tmp_path: Path) -> None:
    lines = ["FROM python:3.11 AS builder", "WORKDIR /app", "COPY . .", "RUN pip install torch==2.6.0"]
    (tmp_path / "Dockerfile").write_text("\n".join([*lines, "FROM python:3.11-slim", copy]) + "\n")
    made = draft("Dockerfile", tmp_path, FACTS)
    assert values(made, "copy") == expected
    assert any(row.line.text.startswith("COPY /opt/venv") for row in made.skipped) is not bool(expected)
    assert values(made, "torch") == ["==2.6.0"]
