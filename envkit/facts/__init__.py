"""The compatibility facts: YAML tables with sources, the snapshot made from them, its loader and its checks."""
