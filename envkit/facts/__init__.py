"""The compatibility facts: YAML tables with sources, the snapshot of them, its loader and its checks."""
