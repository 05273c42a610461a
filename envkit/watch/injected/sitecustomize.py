"""Python imports this module at the start of every process under `envkit watch`, because PYTHONPATH has this folder.

It installs the probes and then runs the `sitecustomize` that it shadows. sys.path is then the same as without `watch`.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _install():
    folder = os.environ.get("ENVKIT_WATCH_DIR")
    if not folder or not os.path.isdir(folder):
        return
    sys.path.insert(0, _HERE)
    try:
        import envkit_watch_probes

        envkit_watch_probes.install(folder)
    # The training must run even if it cannot be recorded.
    except Exception as error:
        sys.stderr.write("envkit watch: this process is not recorded: %r\n" % (error,))
    finally:
        sys.path.remove(_HERE)


def _chain():
    """Run the next `sitecustomize` on the path, which replaces this module."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

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


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
_install()
_chain()
