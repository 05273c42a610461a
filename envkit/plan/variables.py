"""Environment variables of an image, and its requirements on the NVIDIA driver."""

from __future__ import annotations

import re

from envkit.ground.versions import key
from envkit.plan.features import Feature
from envkit.plan.model import PREFIX
from envkit.resolve.model import Resolution

HOME = "/tmp/home"  # noqa: S108 - /tmp is the only folder that any user may write, also with a read-only root
_CACHES = {
    "XDG_CACHE_HOME": "",
    "TORCH_HOME": "/torch",
    "TRITON_CACHE_DIR": "/triton",
    # torch's own default contains the user's name, which a UID without a row in passwd does not have.
    "TORCHINDUCTOR_CACHE_DIR": "/inductor",
    "NUMBA_CACHE_DIR": "/numba",
    "MPLCONFIGDIR": "/matplotlib",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOOLKIT = "/usr/local/cuda"


def image_variables(resolution: Resolution, *, kind: str, devel: bool, features: tuple[Feature, ...]) -> dict[str, str]:
    """Return the variables that every image sets; those of the definition override them."""
    toolkit = devel and resolution.cuda is not None
    variables = {
        "PATH": f"{PREFIX}/bin:{_TOOLKIT + '/bin:' if toolkit else ''}{_SYSTEM_PATH}",
        "CONDA_PREFIX" if kind == "miniconda" else "VIRTUAL_ENV": PREFIX,
        "HOME": HOME,
        "LANG": "C.UTF-8",
        # The image's user cannot write to the environment, and the timestamps in .pyc files would differ per build.
        "PYTHONDONTWRITEBYTECODE": "1",
        # A mounted home may have packages in ~/.local, which would hide those of the environment.
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    variables |= {name: f"{HOME}/.cache{below}" for name, below in _CACHES.items()}
    if resolution.cuda is None:
        # With void, the NVIDIA container runtime behaves like runc.
        return variables | {"NVIDIA_VISIBLE_DEVICES": "void"}
    capabilities = ["compute", "utility"]
    capabilities += [name for feature in features for name in feature.driver_capabilities]
    variables |= {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": ",".join(dict.fromkeys(capabilities)),
        "NVIDIA_REQUIRE_CUDA": require_cuda(resolution),
    }
    if toolkit:
        # The base's value would put the toolkit's libraries before those bundled with torch. The dynamic loader still
        # finds them by its cache (/etc/ld.so.conf.d).
        variables |= {"CUDA_HOME": _TOOLKIT, "LD_LIBRARY_PATH": ""}
        archs = resolution.gpus or resolution.gpu_archs
        if archs:
            variables["TORCH_CUDA_ARCH_LIST"] = ";".join(archs)
    return variables


def require_cuda(resolution: Resolution) -> str:
    """Return NVIDIA_REQUIRE_CUDA: the driver supports this CUDA natively, or by minor-version compatibility.

    A space means "or". With forward compatibility, the branch of the requested driver is also accepted. If a requested
    GPU runs only PTX, minor-version compatibility is not enough.
    """
    native = f"cuda>={resolution.cuda}"
    driver = resolution.driver
    if driver is None or (_needs_ptx(resolution) and driver.package is None):
        return native
    enough = f"{native} driver>={plain_driver(driver.minimum)}"
    if driver.package is None or driver.given is None:
        return enough
    # The plan requires the cuda-compat package for this branch. Without this clause, the container runtime would refuse
    # the older driver.
    branch = key(driver.given)[0]
    return f"{enough} driver>={branch},driver<{branch + 1}"


def _needs_ptx(resolution: Resolution) -> bool:
    """Return whether a requested GPU has no cubin of its major with an equal or lower minor number."""
    cubins = [key(arch) for arch in resolution.gpu_archs or ()]
    wanted = [key(gpu) for gpu in resolution.gpus]
    return any(not any(cubin[0] == gpu[0] and cubin <= gpu for cubin in cubins) for gpu in wanted)


def plain_driver(version: str) -> str:
    """Return a driver version that the container toolkit can parse: semantic versions have no leading zeros.

    Parts from the first one with a leading zero on are removed: 450.80.02 -> 450.80.
    """
    parts: list[str] = []
    for part in version.split("."):
        if len(part) > 1 and part.startswith("0"):
            break
        parts.append(part)
    return ".".join(parts)


# `cuda>=12.6 driver>=535,driver<536`: blanks separate alternatives, commas the conditions of one.
_FACTOR = re.compile(r"([a-z]+)(=|!=|<|<=|>|>=)([^\s<>=!,]+)")
_PROPERTIES = {"cuda": True, "driver": True, "arch": True, "brand": False}  # whether the value is a version
_SEMANTIC = re.compile(r"(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)){0,2}")


def read_requirement(value: str) -> list[list[tuple[str, str, str]]] | None:
    """Parse NVIDIA_REQUIRE_CUDA as the container toolkit does, into alternatives of (property, operator, value).

    None if the toolkit would silently skip a part (an unknown property) or refuse to start the container.
    """
    alternatives = []
    for term in value.split(" "):
        factors = []
        for text in term.split(","):
            match = _FACTOR.fullmatch(text)
            if match is None or match.group(1) not in _PROPERTIES:
                return None
            if _PROPERTIES[match.group(1)] and not _SEMANTIC.fullmatch(match.group(3)):
                return None
            factors.append((match.group(1), match.group(2), match.group(3)))
        alternatives.append(factors)
    return alternatives
