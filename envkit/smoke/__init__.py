"""The payload: run checks inside an image and print their observations as one JSON document.

The payload uses the standard library and torch alone, Python 3.8 syntax, and no other part of envkit. It only
observes: envkit computes the verdict outside the container, from the document.
"""

SUITE_VERSION = "1.3.0"
SCHEMA = "envkit.payload/1"
END_MARK = "envkit.payload.end"
