"""`envkit build --push`: what was built goes to every registry that a -t names, once it is proved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.build.model import BuildOptions
    from envkit.cli.pushing import Target
    from envkit.cli.tagging import Tagging
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.plan.model import BuildPlan
    from envkit.verify.record import Record

_EXAMPLE = "envkit build -t registry.example.com/team/train:1.0 --push"


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Where an image goes after the build; no targets = nowhere."""

    targets: tuple[Target, ...]
    replace_tag: bool
    mount_from: tuple[str, ...]
    resolved: Settings

    def begin(self, engine: str, options: BuildOptions, plan: BuildPlan, talk: Reporter) -> BuildOptions:
        """See before the build that the registries will take its image; gives the options to build with.

        The embedded engine sends layers to the first of them while it makes others.

        Raises:
            EngineError: a registry refuses, or a name is another image's.
            SurroundingsError: a registry cannot be reached.
        """
        if not self.targets:
            return options
        from envkit.assemble.builders import EMBEDDED
        from envkit.cli import pushing
        from envkit.plan.names import LABEL_PREFIX

        labels = {f"{LABEL_PREFIX}.plan": plan.digest}
        wanted = self.targets[1:] if engine == EMBEDDED else self.targets
        with pushing.transport_of(self.resolved, talk) as transport:
            pushing.look(wanted, labels, transport, talk, replace_tag=self.replace_tag)
        if engine != EMBEDDED:
            return options
        first = f"registry:{self.targets[0].names[0]}"
        return replace(options, output=first, replace_tag=self.replace_tag, mount_from=self.mount_from)

    def end(
        self, image: str, engine: str, record: Record | None, first: Tagging | None, talk: Reporter
    ) -> tuple[Tagging, ...]:
        """Push what is not in its registries yet and set the names, where the proof ended well or none was wanted.

        Args:
            image: what was built, as the engine that has it calls it.
            engine: which one.
            record: of its proof; None = none was wanted.
            first: what became of the name that the build itself pushed to.
            talk: hears of the work.
        """
        from envkit.cli.tagging import Tagging, unproved
        from envkit.ground.errors import EnvkitError

        done = () if first is None else (first,)
        names = [name for one in self.targets for name in one.names][len(done) :]
        if not names:
            return done
        if first is not None and first.why_not is not None:
            return (first, *(replace(first, tag=str(name)) for name in names))
        if record is not None and record.exit_code != 0:
            return tuple(unproved(None, str(name), record) for name in names)
        told: list[Tagging] = []
        try:
            self._send(image, engine, talk, told)
        except EnvkitError as error:
            why, hint = error.message, error.hint
            # What was pushed and tagged before the failure stays so, and is told.
            left = names[max(len(told) - len(done), 0) :]
            told += [Tagging(image=None, tag=str(one), why_not=why, hint=hint, error=error) for one in left]
        by_tag = {one.tag: one for one in (*told, *done)}
        return tuple(by_tag[str(name)] for one in self.targets for name in one.names)

    def _send(self, image: str, engine: str, talk: Reporter, told: list[Tagging]) -> None:
        """Push to all targets, and tell of each when it is done; where the image is already, a few questions do."""
        from envkit.assemble.outputs import repositories
        from envkit.cli import pushing
        from envkit.ground.paths import cache_dir
        from envkit.run.rootless.cell import run_folder
        from envkit.run.source import find_source

        others = repositories(self.targets[0].place, self.mount_from)
        with pushing.transport_of(self.resolved, talk) as transport, run_folder(cache_dir()) as folder:
            source = find_source(image, folder, transport, talk, engine=engine)
            for sent in pushing.send(
                source,
                self.targets,
                transport,
                talk,
                replace_tag=self.replace_tag,
                ahead=True,
                mount_from=others,
            ):
                told += sent.tags


def wish(typed: Mapping[str, Any], options: BuildOptions, resolved: Settings) -> Push:
    """What --push asks for.

    Raises:
        UsageError: a name says no registry, or there is none, or --output says something else.
    """
    from envkit.cli.choices import exclude
    from envkit.cli.pushing import parse_name, targets
    from envkit.ground.errors import UsageError

    exclude(push=typed["push"], output=options.output)
    if typed["push"] and not typed["tags"]:
        raise UsageError("--push needs a name to push to", hint=_EXAMPLE)
    names = [parse_name(tag, "-t") for tag in typed["tags"]] if typed["push"] else []
    return Push(
        targets=targets(names),
        replace_tag=typed["replace_tag"],
        mount_from=tuple(typed["mount_from"]),
        resolved=resolved,
    )
