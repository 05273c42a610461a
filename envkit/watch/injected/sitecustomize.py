"""Python imports this module at the start of every process under `envkit watch`, because PYTHONPATH has this folder.

It installs the probes and then runs the `sitecustomize` that it shadows. sys.path is then the same as without `watch`.
"""

import os
import sys

_OLDEST = (3, 7)  # in which the probes run; this file runs in older ones, too
_HERE = os.path.dirname(os.path.abspath(__file__))


def _install():
    folder = os.environ.get("ENVKIT_WATCH_DIR")
    if not folder or not os.path.isdir(folder):
        return
    if sys.version_info < _OLDEST:
        _note(folder, "Python %d.%d; the probes need %d.%d or newer" % (sys.version_info[:2] + _OLDEST))
        return
    sys.path.insert(0, _HERE)
    try:
        import envkit_watch_probes

        envkit_watch_probes.install(folder)
    # The training must run even if it cannot be recorded.
    except Exception as error:
        _note(folder, type(error).__name__)
    finally:
        sys.path.remove(_HERE)


def _note(folder, reason):
    """Write why this process is not recorded. Not to stderr, which other programs may read."""
    try:
        import json
        import time

        path = os.path.join(folder, "%d-%d.facts" % (os.getpid(), int(time.time() * 1e9)))
        with open(path, "a") as file:
            facts = {"fact": "process", "pid": os.getpid()}, {"fact": "unseen", "reason": reason}
            file.writelines(json.dumps(fact) + "\n" for fact in facts)
    except Exception:
        return


def _chain():
    """Run the next `sitecustomize` on the path, which replaces this module."""
    try:
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec
    except ImportError:
        _chain_old()
        return

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    # Replaced before it runs, as an import does, so that the module finds itself in sys.modules.
    own = sys.modules["sitecustomize"]
    module = sys.modules["sitecustomize"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = own
        raise


def _chain_old():
    """Do the same in Python 2.7 to 3.4."""
    import imp

    try:
        found = imp.find_module("sitecustomize", sys.path)
    except ImportError:
        return
    own = sys.modules.pop("sitecustomize")
    try:
        imp.load_module("sitecustomize", *found)
    except BaseException:
        sys.modules["sitecustomize"] = own
        raise
    finally:
        if found[0] is not None:  # of a package
            found[0].close()


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
_install()
_chain()
