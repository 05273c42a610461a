"""How a process of a training dies, and where, from the frames of a traceback.

Used in the training, and on the host by the reader of the tracebacks that a training leaves.
"""

import atexit
import os
import sys

_OWN = "envkit_watch_"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3.", "/lib64/python3.")
_LONGEST = 80  # characters of a name


class Endings:
    """How a process dies, for the report: by an exception that nobody caught, or by a signal.

    Nothing of Python's is replaced. An exception is read from `sys` when the interpreter ends. The traceback at a
    signal is written by `faulthandler`, unless it is on already; the signal then does what it always does.
    """

    def __init__(self, recorder, device):
        self.recorder = recorder
        self.device = device

    def install(self):
        """Look at the end of this interpreter and of those that are forked from it."""
        atexit.register(self.note)

    def trace_signals(self):
        """Let `faulthandler` write the traceback at a fatal signal to a file; called when torch is imported."""
        try:
            import faulthandler

            if not faulthandler.is_enabled():
                faulthandler.enable(self.recorder.crash_file(), all_threads=False)
        except Exception:  # a Python without faulthandler, or a folder that is gone
            return

    def note(self):
        """Write which exception ended this process, and where."""
        try:
            if "torch" in sys.modules and not self.device.probed:
                self.recorder.fact("unseen", reason="another import hook loaded torch")
            trace = getattr(sys, "last_traceback", None)
            kind = getattr(sys, "last_type", None)
            if trace is None or kind is None:
                return
            frames = []
            while trace is not None:
                frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name))
                trace = trace.tb_next
            self.recorder.fact("end", error=kind.__name__, **places(frames))
        except Exception:
            return


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
