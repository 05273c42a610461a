"""C29: import every package that the plan names, and read which libraries of CUDA the installed packages need."""

import json
import os
import pathlib
import sys
import tempfile
from importlib.util import cache_from_source, find_spec

from envkit.smoke import elf, hostfacts, observation, packages
from envkit.smoke.probe import code_of, finish_all, start

ABSENT_MODULE = "envkit_no_such_module"
ABSENT_LIBRARY = "libenvkit-no-such.so.9"
CONTROL = "envkit control"  # with a space, so that no package has this name
WIDTH_MAX = 8  # processes that import at the same time
MEMORY_EACH = 1 << 30  # bytes of free memory for each of them; torch and its largest companions need about half
MEMORY_LEAST = 2 << 30  # bytes that one may use in any case
SHARE = 0.8  # of the time that the check has left; the rest is for reading the metadata and the answers
LEAST_S = 5.0
UNLIMITED_S = 60.0  # where the check has no time limit
# A library of the driver, which the container gets from outside, or the loader itself.
OUTSIDE = ("libcuda.so", "libnvidia-", "ld-linux")


def run(ctx):
    """Return C29.imports and C29.cuda."""
    named = ctx.spec.get("packages")
    if not named:
        raise observation.Skip("NOT_PROMISED", "there is no plan that names packages")
    python, conda = packages.installed(), packages.of_conda(sys.prefix)
    rows = [_row(item, python, conda) for item in named]
    names = packages.available(python.values(), packages.system_folders(sys.prefix))
    return [_imports(ctx, rows, python, names), _cuda(rows, python, names)]


def _row(item, python, conda):
    """Return ``(observed, package)`` of a package that the plan names; the package is None if it is not installed."""
    name, of_conda = str(item["name"]), bool(item["conda"])
    of_python = python.get(packages.normal(name))
    package = (conda.get(name.lower()) or of_python) if of_conda else (of_python or conda.get(name.lower()))
    observed = {"name": name, "conda": of_conda, "version": None, "modules": [], "outcome": "absent"}
    if package is not None:
        modules = package.modules()
        observed.update(version=package.version, modules=modules[: packages.MODULES_MAX], of=len(modules))
        observed["outcome"] = "not tried" if modules else "no modules"
    elif of_conda and not conda:
        # The plan is for conda, and this is another environment (--runner host).
        observed["outcome"] = "not conda"
    return observed, package


def _imports(ctx, rows, python, names):
    with_torch, alone = [], [(CONTROL, [ABSENT_MODULE])]
    for observed, package in rows:
        if observed["outcome"] != "not tried":
            continue
        error = ctx.notes.get("import_errors", {}).get(observed["modules"][0])
        if error is not None:
            observed.update(outcome="failed", failed=[dict(error, module=observed["modules"][0])])
        elif observed["modules"][0] in sys.modules:
            observed["outcome"] = "imported"  # by this process
        elif packages.requires_torch(package.name, python):
            with_torch.append((observed["name"], observed["modules"]))
        else:
            alone.append((observed["name"], observed["modules"]))
    answers = _answers(ctx, with_torch, alone)
    for observed, package in rows:
        answer = answers.get(observed["name"])
        if answer is not None:
            observed.update(answer)
        if package is not None:
            missing = packages.missing(package, names).items()
            observed["missing_libraries"] = {name: path for name, path in missing if not name.startswith(OUTSIDE)}
            observed["missing_of_modules"] = sorted(
                name for name, path in observed["missing_libraries"].items() if packages.is_module(path)
            )
    absent = (answers.get(CONTROL, {}).get("failed") or [{}])[0]
    controls = [
        observation.control(
            "absent_module_fails",
            absent.get("type") == "ModuleNotFoundError" and ABSENT_MODULE in absent.get("line", ""),
            str(absent.get("line")),
        ),
        _absent_library(names),
    ]
    system = hostfacts.distribution(hostfacts.read_text("/etc/os-release"))
    observed = {"packages": [observed for observed, _ in rows], "system": system}
    return observation.ran("C29.imports", "image", observed, controls)


def _answers(ctx, with_torch, alone):
    """Import the modules of ``[(name, modules), ...]`` in parallel; return ``{name: what happened}``."""
    limit = UNLIMITED_S if ctx.limit is None else ctx.remaining() * SHARE
    room = hostfacts.memory_room()
    groups = [(preload, jobs) for preload, jobs in (("torch", with_torch), (None, alone)) if jobs]
    # Each group may use every CPU: the one with torch waits for torch at first.
    fitting = (room or MEMORY_EACH) // MEMORY_EACH // len(groups)
    width = max(1, min(WIDTH_MAX, int(hostfacts.cpus()["effective"]), fitting))
    memory = None if room is None else max(MEMORY_LEAST, room // width // len(groups))
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for number, (preload, jobs) in enumerate(groups):
            job = {"preload": preload, "jobs": jobs, "width": width}
            job.update(limit_s=limit, deadline_s=max(LEAST_S, limit - 1.0), memory_bytes=memory)
            path = pathlib.Path(folder) / f"job{number}.json"
            path.write_text(json.dumps(job), encoding="utf-8")
            started.append(start(code_of("importing"), [str(path)], _variables(folder)))
        for ended in finish_all(started, max(LEAST_S, limit)):
            for name, answer in ended.get("imports", {}).items():
                answers[name] = dict(answer, outcome=_outcome(answer))
    return answers


def _outcome(answer):
    if answer["outcome"] != "ended":
        return answer["outcome"]  # crashed, exited, timeout
    return "failed" if answer["failed"] else "imported"


def _variables(folder):
    """Return variables for the imports, whose files are to be in ``folder``.

    Packages keep caches and settings in the home folder, so it has to be writable. Images without compiled modules get
    a folder for them: otherwise every package would compile NumPy again.
    """
    home = os.environ.get("HOME") or ""
    try:
        pathlib.Path(home).mkdir(parents=True, exist_ok=True)
    except OSError:
        home = ""
    more = {} if home and os.access(home, os.W_OK) else {"HOME": folder}
    if not any(
        pathlib.Path(cache_from_source(file)).exists() for file in map(_source, ("torch", "numpy", "pip")) if file
    ):
        more.update(PYTHONPYCACHEPREFIX=folder, PYTHONDONTWRITEBYTECODE="")
    return more


def _source(name):
    """Return the file of a module, None if it is not installed; nothing is imported."""
    spec = find_spec(name)
    return spec.origin if spec is not None and str(spec.origin).endswith(".py") else None


def _absent_library(names):
    """Control: a shared object that needs a library which does not exist."""
    missing = _of_planted(ABSENT_LIBRARY, lambda package: packages.missing(package, names))
    return observation.control("absent_library_is_missed", list(missing) == [ABSENT_LIBRARY], str(missing))


def _of_planted(soname, read):
    """Return ``read(package)`` of a package whose only file is a shared object that needs ``soname``."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "planted.so").write_bytes(elf.planted(soname))
        return read(packages.Package("planted", "0", folder, lambda: ["planted.so"]))


def _cuda(rows, python, names):
    """Return C29.cuda: the libraries of CUDA in the image, and those that each installed package needs."""
    named = {packages.normal(observed["name"]) for observed, _ in rows}
    needs = []
    for name, package in sorted(python.items()):
        wanted = packages.cuda_needs(package)
        if wanted:
            needs.append({"name": package.name, "version": package.version, "named": name in named, "needs": wanted})
    planted = _of_planted("libcublas.so.99", packages.cuda_needs)
    control = observation.control("planted_need_is_seen", planted == {"libcublas": {"99": "planted.so"}}, str(planted))
    observed = {"has": packages.cuda_versions(names), "packages": needs}
    return observation.ran("C29.cuda", "image", observed, [control])
