"""Tests of envkit and the world they run in."""
