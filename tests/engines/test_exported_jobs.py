"""Exported jobs, unmodified: a real Slurm builds an image, proves it and names the broken one; pods' commands run."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.pods import printed_by_pod
from tests.support.exports import PIN
from tests.support.file_images import digest, entry, packed
from tests.support.kubernetes import documents, started_with
from tests.world.slurm import Cluster, cluster
from tests.world.world import up

pytestmark = [pytest.mark.engine, pytest.mark.long]
# Only what the world's channel holds.
CPU = 'schema: envkit.image/1\ntitle: CPU\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of the arrays."""

    slurm: Cluster
    folder: Path  # from which they were submitted
    images: Path
    job: str
    codes: list[int]  # of the array's tasks
    last: list[int]  # of the job that prints the verdicts

    @property
    def records(self) -> Path:
        return self.folder / "records" / self.job


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Two images go through the arrays: `good` is built by one, `torn` is the same image with a torch that is not."""
    found = up(("registry", "base", "channel"))
    found.require("registry", "base", "channel")
    folder = tmp_path_factory.mktemp("slurm")
    images = folder / "images"
    images.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.env().items():
            patch.setenv(name, value)
        patch.setenv("HOME", str(folder))
        for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
            patch.delenv(name, raising=False)
        for name in ("good", "torn"):
            (folder / f"{name}.yaml").write_text(CPU)
        with cluster(folder / "cluster") as slurm:
            first, both = folder / "first", folder / "both of them"
            _export(folder, first, images, "good.yaml")
            _, codes = slurm.submit("build.sbatch", cwd=first)
            assert codes == [0], _logs(first)
            _tear(images / "good", images / "torn")
            _export(folder, both, images, "good.yaml", "torn.yaml")
            job, codes = slurm.submit("verify.sbatch", cwd=both)
            _, last = slurm.submit(f"--dependency=afterany:{job}", "verdicts.sh", f"records/{job}", cwd=both)
            yield Ran(slurm, both, images, job, sorted(codes), last)


def _export(home: Path, out: Path, images: Path, *definitions: str) -> None:
    argv = [sys.executable, "-m", "envkit", "export", "slurm", *definitions, "--out", f"{out}/", "--minutes", "10"]
    options = (f"images={images}", f"envkit={Path(sys.executable).with_name('envkit')}", "cpus=1", "memory=2G")
    done = subprocess.run(
        [*argv, *(f"--set={one}" for one in (*options, "only=C01,C05"))],
        cwd=home,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def _tear(whole: Path, torn: Path) -> None:
    """A copy of an image whose torch cannot be imported."""
    shutil.copytree(whole, torn, copy_function=os.link)
    layer = packed([(entry("opt/env/lib/python3.11/site-packages/torch/__init__.py"), b"raise ImportError('torn')\n")])
    index = json.loads((torn / "index.json").read_bytes())
    manifest = json.loads(_blob(torn, index["manifests"][0]["digest"]).read_bytes())
    config = json.loads(_blob(torn, manifest["config"]["digest"]).read_bytes())
    config["rootfs"]["diff_ids"].append(layer.diff_id)
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    manifest["layers"].append(_put(torn, layer.data, mediaType=kind))
    manifest["config"] |= _put(torn, json.dumps(config).encode())
    index["manifests"][0] |= _put(torn, json.dumps(manifest).encode())
    (torn / "index.json").unlink()  # the whole image has the same file
    (torn / "index.json").write_text(json.dumps(index))


def _blob(layout: Path, name: str) -> Path:
    return layout / "blobs" / "sha256" / name.removeprefix("sha256:")


def _put(layout: Path, data: bytes, **more: str) -> dict[str, Any]:
    _blob(layout, digest(data)).write_bytes(data)
    return {"digest": digest(data), "size": len(data), **more}


def _logs(folder: Path) -> str:
    return "\n".join(f"{log.name}:\n{log.read_text()}" for log in sorted(folder.glob("*.log")))


def test_each_task_ran_once_and_left_its_record(ran: Ran) -> None:
    assert sorted(log.name for log in ran.folder.glob("envkit-verify-*.log")) == [
        f"envkit-verify-{ran.job}_{index}.log" for index in (0, 1)
    ]
    node = ran.slurm.node
    assert {path.name for path in ran.records.iterdir()} == {
        f"{name}@{node}.{kind}" for name in ("good", "torn") for kind in ("json", "xml", "code")
    }


def test_the_good_image_is_proved_and_the_torn_one_is_not(ran: Ran) -> None:
    node, verdicts = ran.slurm.node, {}
    for name in ("good", "torn"):
        record = json.loads((ran.records / f"{name}@{node}.json").read_bytes())
        assert record["schema"] == "envkit.verify/1"
        assert record["subject"]["name"] == name
        assert record["subject"]["image"] == f"oci:{ran.images / name}"
        code = int((ran.records / f"{name}@{node}.code").read_text())
        assert code == record["summary"]["exit_code"]
        said = " ".join(check["message"] for check in record["checks"] if check["verdict"] == "FAIL")
        assert ("torn" in said) is (name == "torn")
        verdicts[name] = (record["summary"]["verdict"], code)
    assert verdicts == {"good": ("PASS", 0), "torn": ("FAIL", 6)}, _logs(ran.folder)


def test_junit_names_the_failure(ran: Ran) -> None:
    failed = {
        name: len(ET.parse(ran.records / f"{name}@{ran.slurm.node}.xml").getroot().findall(".//failure"))
        for name in ("good", "torn")
    }
    assert failed["good"] == 0
    assert failed["torn"] > 0


def test_the_last_job_prints_the_matrix_and_ends_with_the_gravest_code(ran: Ran) -> None:
    assert (ran.codes, ran.last) == ([0, 6], [6])
    (log,) = ran.folder.glob("envkit-verdicts-*.log")
    rows = [line.split() for line in log.read_text().splitlines()]
    assert rows == [
        ["IMAGE", "NODE", "VERDICT"],
        ["good", ran.slurm.node, "verified"],
        ["torn", ran.slurm.node, "FAILED"],
    ]


def test_a_task_that_left_nothing_is_named(ran: Ran) -> None:
    (ran.records / f"good@{ran.slurm.node}.code").rename(ran.records / "kept")
    try:
        done = subprocess.run(
            ["bash", "verdicts.sh", f"records/{ran.job}"], cwd=ran.folder, check=False, capture_output=True, text=True
        )
    finally:
        (ran.records / "kept").rename(ran.records / f"good@{ran.slurm.node}.code")
    assert ["good", "-", "did", "not", "end"] in [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 6


def test_a_task_that_slurm_kills_is_not_started_again(ran: Ran) -> None:
    shown = ran.slurm.run("scontrol", "show", "job", ran.job, cwd=ran.folder).stdout
    assert shown.count("Requeue=0 Restarts=0") == 2, shown


@pytest.fixture(scope="module")
def cluster_files(ran: Ran) -> Path:
    """What `envkit export kubernetes` writes for both images."""
    out = ran.folder.parent / "kubernetes"
    definitions = [str(ran.folder.parent / f"{name}.yaml") for name in ("good", "torn")]
    where = (
        "--registry",
        "registry.example.com/team/train",
        "--set",
        "only=C01,C05",
        "--requirement",
        PIN,
        "--out",
        f"{out}/",
    )
    argv = [sys.executable, "-m", "envkit", "export", "kubernetes", *definitions, *where]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def _judged(ran: Ran, files: Path, log: bytes, *options: str) -> "subprocess.CompletedProcess[bytes]":
    questions = str(files / "plans" / "questions.yaml")
    argv = [sys.executable, "-m", "envkit", "verify", "--observed", "-", "--questions", questions, *options]
    return subprocess.run(argv, input=log, cwd=ran.folder, check=False, capture_output=True)


def test_what_a_pod_prints_is_judged_outside(ran: Ran, cluster_files: Path) -> None:
    log = printed_by_pod(cluster_files, "good", f"oci:{ran.images / 'good'}")
    done = _judged(ran, cluster_files, log, "--json")
    assert done.returncode == 0, done.stderr.decode()
    record = json.loads(done.stdout)
    assert (record["summary"]["verdict"], record["run"]["runner"]) == ("PASS", "observed")
    assert record["subject"]["image"] == "registry.example.com/team/train:good"
    assert record["env"]["sw"]["torch"].startswith("2.13.0")
    assert _judged(ran, cluster_files, log[: len(log) // 2]).returncode == 6


def test_a_torn_image_in_a_pod_fails(ran: Ran, cluster_files: Path) -> None:
    done = _judged(ran, cluster_files, printed_by_pod(cluster_files, "torn", f"oci:{ran.images / 'torn'}"))
    assert done.returncode == 6, done.stderr.decode()
    assert b"torn" in done.stdout


def test_the_scripts_are_sound(ran: Ran, cluster_files: Path) -> None:
    scripts = [(name, (ran.folder / name).read_text()) for name in ("verify.sbatch", "build.sbatch", "verdicts.sh")]
    for name in ("verify.yaml", "verify-every-node.yaml", "build.yaml"):
        tree = documents((cluster_files / name).read_text())[-1]
        argv = started_with(tree["spec"]["template"]["spec"]["containers"][0]["command"], {})
        scripts.append((name, f"#!{argv[0]}\n{argv[2]}\n"))
    shellcheck = Path(sys.executable).with_name("shellcheck")
    for name, text in scripts:
        done = subprocess.run([shellcheck, "-"], input=text, check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stdout}"
