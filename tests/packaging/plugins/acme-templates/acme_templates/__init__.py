"""Templates for envkit."""

from pathlib import Path

FOLDER = Path(__file__).parent / "templates"
