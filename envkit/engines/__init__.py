"""Engines: a plan goes in, an image comes out."""
