import io
import tarfile
from dataclasses import replace

import pytest

from envkit.assemble import top_layer
from envkit.assemble.base_files import BaseFiles
from envkit.image.tarstream import Kind
from envkit.image.tree import Node, Tree
from envkit.lock.model import DebPackage, LockedBase
from tests.support.locks import lock_for
from tests.support.plans import plan_from, shipped_plan

NOTHING = BaseFiles(Tree({}))


def test_the_user_is_added_to_those_of_the_base() -> None:
    base = BaseFiles(Tree({
        "etc": Node(Kind.FOLDER, 0o755),
        "etc/passwd": Node(Kind.FILE, 0o644, value=b"root:x:0:0:root:/root:/bin/bash\nd\xe9:x"),
        "etc/group": Node(Kind.FILE, 0o644, value=b"root:x:0:\n"),
    }))  # fmt: skip
    plan = shipped_plan("cu126")
    found = top_layer.items(plan, lock_for(plan), base)
    assert found["etc/passwd"].data == (
        b"root:x:0:0:root:/root:/bin/bash\nd\xe9:x\nenvkit:x:1000:1000:envkit:/tmp/home:/bin/bash\n"
    )
    assert found["etc/group"].data == b"root:x:0:\nenvkit:x:1000:\n"


def test_a_conda_image_has_no_virtual_environment() -> None:
    plan = shipped_plan("cu126", template="miniconda")
    found = top_layer.items(plan, lock_for(plan), NOTHING)
    assert not [path for path in found if path.startswith("opt/")]
    assert not found["usr/share/envkit/entry.sh"].executable
    assert "usr/share/envkit/sshd.sh" not in found


def test_features_bring_their_scripts() -> None:
    plan = plan_from("features: [ssh]\n")
    assert "usr/share/envkit/sshd.sh" in top_layer.items(plan, lock_for(plan), NOTHING)


def test_what_would_change_its_user_comes_again_without_that_bit() -> None:
    base = BaseFiles(Tree({
        "usr/bin/su": Node(Kind.FILE, 0o4755, value=b"su"),
        "usr/bin/odd": Node(Kind.FILE, 0o4644, value=b"odd", gid=42),
        "usr/bin/ls": Node(Kind.FILE, 0o755),
        "var/mail": Node(Kind.FOLDER, 0o2775, gid=8),
    }))  # fmt: skip
    plan = shipped_plan("cu126")
    found = top_layer.items(plan, lock_for(plan), base)
    assert found["usr/bin/su"] == top_layer.Item(data=b"su", executable=True)
    assert found["usr/bin/odd"] == top_layer.Item(data=b"odd", owner=(0, 42))
    assert found["var/mail"] == top_layer.Item(mode=0o775, owner=(0, 8))
    assert "usr/bin/ls" not in found


@pytest.mark.parametrize(
    ("version", "said"), [("3.11.2-6+deb12u8", "3.11.2"), ("1:3.11.9~rc1-1", "3.11.9"), (None, "3.11")]
)
def test_the_version_of_the_interpreter_is_as_exact_as_the_lock(version: str | None, said: str) -> None:
    plan = shipped_plan("cu126", template="wheels")
    rows = (DebPackage(name="python3.11", version=version, arch="amd64", sha256=None, size=1),) if version else ()
    base = LockedBase(kind="bootstrap", reference="bootstrap:debian/bookworm", suite="bookworm", packages=rows)
    assert top_layer.interpreter_version(replace(lock_for(plan), base=base)) == said


def test_folders_of_the_base_keep_their_modes() -> None:
    base = BaseFiles(Tree({"srv": Node(Kind.FOLDER, 0o700), "srv/x": Node(Kind.FILE, 0o644)}))
    out = io.BytesIO()
    found = {"srv/work": top_layer.Item(mode=0o1777), "new/deep/file": top_layer.Item(data=b"x", executable=True)}
    made = top_layer.write(found, base, out)
    assert made.size == len(out.getvalue())
    with tarfile.open(fileobj=io.BytesIO(out.getvalue()), mode="r:gz") as tar:
        rows = {member.name: (member.mode, member.isdir()) for member in tar}
    assert rows == {
        "new": (0o755, True), "new/deep": (0o755, True), "new/deep/file": (0o755, False), "srv/work": (0o1777, True),
    }  # fmt: skip
