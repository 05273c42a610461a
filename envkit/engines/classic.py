"""Read the output of Docker's classic builder: steps, containers, the image ID, and the error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envkit.engines.failures import EngineInfo, disk_full, translate
from envkit.ground.errors import EngineError, EnvkitError
from envkit.ground.text import Lines, neutral

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envkit.engines.log import BuildLog
    from envkit.ground.progress import Reporter

KILLED = 137  # 128 + SIGKILL, as a shell reports it
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")  # Step 3/12 : RUN pip install torch
_RUNNING = re.compile(r" ---> Running in ([0-9a-f]{12,64})")  # printed when the step's container exists
# Progress of a pull, which the engine reports for every layer.
_TRANSFER = ("Downloading", "Extracting", "Verifying Checksum", "Waiting", "Pulling fs layer")


class BuildEvents:
    """Reads the build's event stream. Only `aux.ID` is the image ID: any step can print "Successfully built"."""

    def __init__(self, log: BuildLog, reporter: Reporter, on_container: Callable[[str], None]) -> None:
        self.image: str | None = None
        self.error: str | None = None
        self.exit_code: int | None = None
        self.container: str | None = None  # the running step's
        self._log, self._reporter, self._on_container = log, reporter, on_container
        self._lines = Lines()
        self._step: tuple[int, int, str] | None = None
        self._is_new_step = False  # the step was announced, but its container was not yet

    def read(self, event: Mapping[str, Any]) -> None:
        """Read one event of the stream."""
        if "stream" in event:
            for line in self._lines.feed(str(event["stream"])):
                self._line(line)
        if isinstance(event.get("aux"), dict) and "ID" in event["aux"]:
            self.image = str(event["aux"]["ID"])
        if "status" in event:
            self._status(event)
        if "error" in event or "errorDetail" in event:
            detail = event.get("errorDetail") or {}
            self.error = str(detail.get("message") or event.get("error"))
            self.exit_code = detail.get("code")
            self.image = None

    def finish(self) -> None:
        """Read the rest of an unfinished line; call this at the end of the stream."""
        for line in self._lines.rest():
            self._line(line)

    def where(self) -> str:
        """Return the current step, for error messages."""
        if self._step is None:
            return "its start"
        number, total, instruction = self._step
        return f"step {number}/{total}: {neutral(instruction)[:160]}"

    def failure(self, doing: str, info: EngineInfo) -> EnvkitError:
        """Return the error for a build that ended with `error`."""
        message, details = self.error or "", self._log.details()
        # Only a failed RUN has an exit code; other errors are the engine's own.
        if self.exit_code is None or disk_full(message):
            return translate(message, f"{doing}, {self.where()}", info, details)
        # The step met the full disk itself, so only its output says so.
        if any(disk_full(line) for line in self._log.tail()):
            return translate("no space left on device", f"{doing}, {self.where()}", info, details)
        meaning = " (killed by signal 9, but not for lack of memory)" if self.exit_code == KILLED else ""
        return EngineError(
            f"{doing} failed at {self.where()}: exit code {self.exit_code}{meaning}",
            hint=f"less {self._log.path}" if self._log.path else None,
            details=details,
        )

    def _line(self, line: str) -> None:
        if step := _STEP.match(line):
            self._step = (int(step[1]), int(step[2]), step[3])
            self._is_new_step, self.container = True, None
            self._reporter.advance(self._step[0] - 1, self._step[1])
        elif self._is_new_step and (running := _RUNNING.match(line)):
            # Only the first such line: the step's own output, which comes later, could imitate it.
            self._is_new_step, self.container = False, running[1]
            self._on_container(running[1])
        if line.strip():
            self._log.write(line)

    def _status(self, event: Mapping[str, Any]) -> None:
        status = str(event["status"])
        if not status.startswith(_TRANSFER):
            ident = event.get("id")
            self._log.write(f"{ident}: {status}" if ident else status)
