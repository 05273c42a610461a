"""The table of features: the packages, ports and default command that each adds to an image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One predefined addition. `{cuda}` in a pip name stands for the CUDA major, as in nvidia-dali-cuda120."""

    name: str
    meaning: str
    conda: tuple[str, ...] = ()  # miniconda template
    pip: tuple[str, ...] = ()  # both templates
    wheels: tuple[str, ...] = ()  # pip packages that replace `conda` in the wheels template
    deb: tuple[str, ...] = ()
    rpm: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()  # default command, unless the definition has one
    driver_capabilities: tuple[str, ...] = ()  # beyond compute and utility
    ports: tuple[str, ...] = ()  # where its server listens in a container: '8888/tcp'
    needs_cuda: bool = False


FEATURES = (
    Feature(
        name="jupyter",
        meaning="JupyterLab on port 8888",
        conda=("jupyterlab",),
        wheels=("jupyterlab",),
        # All addresses: a published port does not lead to the loopback address of the container.
        cmd=("jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser"),
        ports=("8888/tcp",),
    ),
    Feature(
        name="ssh",
        meaning="an SSH server that runs without root, started by /usr/share/envkit/sshd.sh",
        deb=("openssh-server",),
        rpm=("openssh-server",),
        # Without root, a server may not be able to listen on port 22.
        ports=("2222/tcp",),
    ),
    Feature(
        name="tensorboard",
        meaning="TensorBoard",
        conda=("tensorboard",),
        wheels=("tensorboard",),
        ports=("6006/tcp",),
    ),
    Feature(
        name="turbojpeg",
        meaning="fast JPEG decoding: simplejpeg, whose wheels include libjpeg-turbo",
        pip=("simplejpeg",),
    ),
    Feature(
        name="dali",
        meaning="NVIDIA DALI",
        pip=("nvidia-dali-cuda{cuda}0",),
        # DALI decodes with NVDEC, whose library the container toolkit mounts only with `video`.
        driver_capabilities=("video",),
        needs_cuda=True,
    ),
)
NAMES = tuple(feature.name for feature in FEATURES)


def rows(names: tuple[str, ...]) -> tuple[Feature, ...]:
    """Return the features with these names, in the order of the table."""
    return tuple(feature for feature in FEATURES if feature.name in names)
