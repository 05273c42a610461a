"""Rows for the compatibility data of envkit."""

from pathlib import Path

FACTS = Path(__file__).parent / "rows.yaml"
