"""What is wrong in an image, or other than its plan says, is seen and called by its name, in a real container."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from envkit.resolve.model import Driver
from tests.engines.broken_worlds import SITE, Sound
from tests.support.payloads import said

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_a_library_from_two_places_and_a_second_openmp(sound: Sound) -> None:
    copies = "/opt/env/lib/libcudnn.so.9 /opt/other/libcudnn.so.9 /opt/other/libiomp5.so"
    image = sound.layer(
        f"RUN mkdir /opt/other && for to in {copies}; do cp -L /lib/x86_64-linux-gnu/libz.so.1 $to; done",
        f"ENV LD_PRELOAD={copies.replace(' ', ':')} LD_LIBRARY_PATH=/opt/other",
    )
    found = sound.said("C02,C08", image=image)
    assert found["C02.libraries"] == ("FAIL", "LIBRARY_LOADED_TWICE")
    assert found["C08.openmp"] == ("WARN", "TWO_OPENMP_RUNTIMES")
    assert found["S03"] == ("WARN", "ENV_SHADOWS")


def test_a_cpu_build_where_cuda_was_promised(sound: Sound) -> None:
    driver = Driver(native="560.28", minimum="525.60.13", mode=None, given=None)
    promised = replace(sound.plan.resolution, cuda="12.6", cudnn="9.5.1", local_version="cu126", driver=driver)
    found = sound.said("C01,C02", plan=replace(sound.plan, resolution=promised))
    assert found["C01.cuda"] == ("FAIL", "CPU_BUILD_INSTALLED")
    assert found["C02.libraries"] == ("FAIL", "NO_CUDA_LIBRARY")
    assert found["C01.cudnn"][0] == "FAIL"
    assert found["S00"] == ("FAIL", "PLAN_MISMATCH")


def test_a_torchvision_of_another_torch(sound: Sound) -> None:
    image = sound.layer(
        f"RUN mkdir {SITE}/torchvision {SITE}/torchvision-0.1.dist-info"
        f" && echo '__version__ = \"0.1\"' > {SITE}/torchvision/__init__.py"
        f" && printf 'Metadata-Version: 2.1\\nName: torchvision\\nVersion: 0.1\\n'"
        f" > {SITE}/torchvision-0.1.dist-info/METADATA"
    )
    plan = replace(sound.plan, resolution=replace(sound.plan.resolution, torchvision="0.28.0"))
    assert sound.said("C01", image=image, plan=plan)["C01.torchvision"] == ("FAIL", "TORCHVISION_BROKEN")
    assert sound.said("C01", plan=plan)["C01.torchvision"] == ("FAIL", "TORCHVISION_MISSING")


def test_root_another_entry_point_and_a_foreign_label(sound: Sound) -> None:
    image = sound.layer(
        'ENTRYPOINT ["/bin/false", "/usr/share/envkit/entry.sh"]',
        "LABEL envkit.plan=sha256:" + 64 * "0",
    )
    found = sound.said("C00", image=image, started=True)
    assert found["S05"] == ("FAIL", "ENTRYPOINT_BROKEN")
    assert found["S00"] == ("FAIL", "PLAN_MISMATCH")


def test_an_image_without_a_compiler_is_told_where_one_was_wanted(sound: Sound) -> None:
    plan = replace(sound.plan, smoke=replace(sound.plan.smoke, compile="required"))
    found = sound.checks("C18", plan=plan)["C18.inductor"]
    assert (found["verdict"], found["reason_code"]) == ("FAIL", "NO_COMPILER")
    assert said(found, {"features": {"compile": "optional"}}) == ("WARN", "NO_COMPILER")
    assert said(found, {"features": {"compile": "absent"}})[0] == "SKIP"


def test_an_image_for_another_machine_that_runs_as_root_and_only_for_root(sound: Sound) -> None:
    folder = f"{SITE}/torch"
    image = sound.layer(f"RUN chown 1000 {folder} && chmod 0700 {folder}")
    plan = replace(sound.plan, resolution=replace(sound.plan.resolution, platform="linux-aarch64"))
    found = sound.said("C00", image=image, plan=plan, started=True)
    assert found["S01"] == ("FAIL", "PLATFORM_MISMATCH")
    assert found["S02"] == ("PASS", None)
    assert found["S05"] == ("PASS", None)
    assert found["S06"] == ("FAIL", "OTHER_USER_FAILS")
    root = sound.layer_of({}, "ENV HOME=/root", user="0:0")
    assert sound.said("C00", image=root)["S02"] == ("FAIL", "RUNS_AS_ROOT")


def test_an_image_without_pillow_is_told(sound: Sound) -> None:
    assert sound.said("C21")["C21"] == ("SKIP", "PILLOW_ABSENT")


# A folder on the path of the image's Python, with one module each.
_DECODERS = {
    "apart/simplejpeg.py": """
        import io, numpy
        from PIL import Image
        def decode_jpeg(packed, **options):
            levels = numpy.asarray(Image.open(io.BytesIO(packed)).convert("RGB"))
            return numpy.where(levels < 250, levels + 3, levels).astype(numpy.uint8)
    """,
    "swapped/sitecustomize.py": """
        from PIL import Image
        exact = Image.Image.tobytes
        Image.Image.tobytes = lambda self: exact(Image.merge("RGB", self.split()[::-1]))
    """,
    "plain/sitecustomize.py": """
        from PIL import features
        features.check_feature = lambda name: False
    """,
}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11, and Pillow here is another's")
@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("apart", ("FAIL", "DECODERS_DISAGREE")),
        ("swapped", ("FAIL", "PICTURE_WRONG")),
        ("plain", ("WARN", "JPEG_WITHOUT_TURBO")),
    ],
)
def test_a_decoder_that_gives_other_pixels(sound: Sound, folder: str, expected: tuple[str, str]) -> None:
    wheel = metadata.distribution("pillow").locate_file("")
    files = {
        f"site/{path.relative_to(str(wheel))}": path.read_bytes()
        for name in ("PIL", "pillow.libs")
        for path in (Path(str(wheel)) / name).glob("*.so*" if name != "PIL" else "*.*")
    }
    files |= {f"decoders/{name}": textwrap.dedent(text).encode() for name, text in _DECODERS.items()}
    image = sound.layer_of(files, f"COPY site {SITE}", "COPY decoders /opt/decoders")
    found = sound.said("C21", f"--env=PYTHONPATH=/opt/decoders/{folder}", image=image)
    assert found["C21.small"] == found["C21.large"] == expected
