"""A reporter for tests that check what was reported."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Heard:
    """Keeps what is reported, by kind and, in `order`, in sequence."""

    steps: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    progress: list[tuple[int, int | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def step(self, text: str) -> None:
        self.steps.append(text)
        self.order.append(f"step {text}")

    def log(self, line: str) -> None:
        self.lines.append(line)
        self.order.append(f"log {line}")

    def advance(self, done: int, total: int | None) -> None:
        self.progress.append((done, total))

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.order.append(f"note {text}")

    def close(self) -> None:
        self.order.append("close")
