"""The measures of ARCHITECTURE.md's first rule, one concept in one place, read off the source text."""
