"""The result of rendering."""

from __future__ import annotations

from dataclasses import dataclass

SYNTAXES = ("classic", "buildkit")
BESIDE = (
    "It needs the files beside it: `envkit render --out DIR` writes the whole build context for `docker build DIR`."
)
"""The second line of a Dockerfile, as a comment."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The files of a build context by name, and the two base images of its Dockerfile.

    `ca-bundle.pem` is not included: if the Dockerfile uses it, the engine adds it from the settings.
    """

    files: dict[str, bytes]
    build_image: str
    final_image: str
    syntax: str
    executable: frozenset[str] = frozenset()  # names of files with mode 0755
    locked: bool = False  # whether the files install the artifacts of a lock

    @property
    def dockerfile(self) -> str:
        """Text of the Dockerfile."""
        return self.files["Dockerfile"].decode()

    @property
    def environment(self) -> str | None:
        """Text of environment.yml; None for the wheels template and for a locked build."""
        content = self.files.get("environment.yml")
        return None if content is None else content.decode()
