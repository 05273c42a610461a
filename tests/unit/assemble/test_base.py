from pathlib import Path

import pytest

from envkit.assemble import base
from envkit.ground.errors import UsageError
from envkit.image import spec
from envkit.plan.model import BuildPlan
from tests.support.file_images import digest, entry, packed
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan

DPKG = "".join(f"Package: {name}\nStatus: install ok installed\n\n" for name in ("bash", "python3", "tini"))


def _base(folder: Path, *paths: str, dpkg: str = "") -> spec.Base:
    layer = packed([
        *((entry(path, mode=0o755), b"") for path in paths),
        *([(entry("var/lib/dpkg/status"), dpkg.encode())] if dpkg else []),
    ])  # fmt: skip
    (folder / "blob").write_bytes(layer.data)
    described = spec.Descriptor(media_type=spec.LAYER_GZIP, digest=digest(layer.data), size=len(layer.data))
    return spec.Base(
        name="debian",
        layers=(spec.Layer(descriptor=described, diff_id=layer.diff_id, made_by="", blob=folder / "blob"),),
    )


def _wheels() -> BuildPlan:
    return shipped_plan("cu126", template="wheels")


def test_a_base_with_all_that_is_wanted_is_taken(tmp_path: Path) -> None:
    plan = _wheels()
    found = _base(tmp_path, "bin/bash", "usr/bin/python3.11", "usr/bin/tini", dpkg=DPKG)
    assert base.files_of(found, lock_for(plan), plan).find("/usr/bin/tini") is not None


def test_missing_packages_are_named_with_the_base_that_has_them(tmp_path: Path) -> None:
    plan = _wheels()
    found = _base(tmp_path, "bin/bash", dpkg="Package: bash\nStatus: install ok installed\n")
    with pytest.raises(UsageError) as caught:
        base.files_of(found, lock_for(plan), plan)
    assert f"the base {plan.base} lacks python3, tini; the embedded engine cannot install" in caught.value.message
    assert (caught.value.hint or "").startswith("--base bootstrap:debian/bookworm or --base IMAGE")
    assert "--engine docker" in (caught.value.hint or "")


def test_without_a_list_of_packages_the_programs_count(tmp_path: Path) -> None:
    plan = _wheels()
    with pytest.raises(UsageError, match=r"lacks /usr/bin/tini, /usr/bin/python3\.11; the"):
        base.files_of(_base(tmp_path, "bin/bash"), lock_for(plan), plan)
    base.files_of(_base(tmp_path, "bin/bash", "usr/bin/tini", "usr/bin/python3.11"), lock_for(plan), plan)


def test_a_conda_image_needs_a_shell_alone(tmp_path: Path) -> None:
    plan = shipped_plan("cu126", template="miniconda")
    base.files_of(_base(tmp_path, "bin/bash"), lock_for(plan), plan)
    with pytest.raises(UsageError, match="lacks /bin/bash"):
        base.files_of(_base(tmp_path, "bin/sh"), lock_for(plan), plan)
