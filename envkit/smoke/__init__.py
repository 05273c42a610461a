"""The payload: run checks inside an image and print their observations as one JSON document.

Standard library and torch only, Python 3.8 syntax, nothing of the rest of the project. It decides nothing: a verdict
is made outside, from the document.
"""

SUITE_VERSION = "1.3.0"
SCHEMA = "envkit.payload/1"
END_MARK = "envkit.payload.end"
