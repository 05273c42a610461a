"""Where an error came from, from the frames of its traceback. Used in the training and by the reader of tracebacks."""

import os

_OWN = "envkit_watch_"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3.", "/lib64/python3.")
_LONGEST = 80  # characters of a name


def places(frames):
    """Return where an error was raised, where the program called that, and how many of the frames are of the probes.

    ``frames``: (file, line, function) of each, the innermost last.
    """
    theirs = [frame for frame in frames if not is_own(frame) and not is_library(frame)]
    return {
        "where": place(theirs[-1]) if theirs else None,
        "raised": place(frames[-1]) if frames else None,
        "probes": len([frame for frame in frames if is_own(frame)]),
    }


def is_own(frame):
    """Whether a frame is of a probe."""
    return os.path.basename(frame[0]).startswith(_OWN)


def is_library(frame):
    """Whether a frame is of Python or of an installed package."""
    return frame[0].startswith("<frozen") or any(name in frame[0] for name in _LIBRARIES)


def place(frame):
    """Return a frame as text, with the file's name alone: a path may have the name of a person."""
    return "%s:%d in %s" % (os.path.basename(frame[0])[:_LONGEST], frame[1], frame[2][:_LONGEST])
