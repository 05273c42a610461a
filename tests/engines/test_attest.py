"""`envkit attest` and `envkit inspect` on a real image in a real registry: what is said fits, and damage is refused."""

import gzip
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement as TheirStatement
from in_toto_attestation.v1.statement_pb2 import Statement as Message

from envkit.attest import dsse
from envkit.attest.attached import ARTIFACT, Attestation, Status, artifact, read_attached
from envkit.attest.keys import PrivateKey, PublicKey, read_private, read_public
from envkit.attest.statement import PROVENANCE, SBOM, VERIFY, statement_bytes
from envkit.attest.subject import Subject, find_subject
from envkit.image import spec
from envkit.image.name import parse_reference
from envkit.registry.referrers import attach, fallback_tag
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.oci_images import image_of, push, registry
from tests.support.attestations import resealed
from tests.support.heard import Heard
from tests.world.referrers import referrers_before
from tests.world.world import up

pytestmark = [pytest.mark.engine, pytest.mark.long]
ENVKIT = (sys.executable, "-m", "envkit")
NOTE = "https://example.com/note/v1"
# Only what the world's channel holds.
CPU = """schema: envkit.image/1
title: CPU
companions: []
request: {os: debian12, python: "3.11", cpu: true}
smoke: {tier: quick}
"""


@dataclass(frozen=True, slots=True)
class Made:
    """A real image, attested in a registry whose storage lies on this disk."""

    name: str  # 'host/team/cpu:1'
    folder: Path
    environ: dict[str, str]
    storage: Path
    record: Path
    attested: dict[str, Any]

    def envkit(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ENVKIT, *argv],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def blob(self, digest: str) -> Path:
        digits = digest.removeprefix("sha256:")
        return self.storage / "docker/registry/v2/blobs/sha256" / digits[:2] / digits / "data"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    world = up(("registry", "base", "channel"))
    world.require("registry", "base", "channel")
    folder = tmp_path_factory.mktemp("attest")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")}
    own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
    environ = kept | world.env() | own
    with registry(folder) as host:
        name = f"{host}/team/cpu:1"
        (folder / "cpu.yaml").write_text(CPU)
        found = Made(name, folder, environ, folder / "data", folder / "record.json", {})
        built = found.envkit(
            "build", "cpu.yaml", "--engine", "embedded", "--output", f"registry:{name}", "--progress", "plain"
        )  # fmt: skip
        assert built.returncode == 0, built.stderr
        (record,) = (folder / "state/envkit/records").iterdir()
        shutil.copy(record, folder / "record.json")
        for pair in ("team", "stranger"):
            assert found.envkit("attest", "--new-key", f"{pair}.key").returncode == 0
        done = found.envkit("attest", name, "--record", "record.json", "--key", "team.key", "--json")
        assert done.returncode == 0, done.stderr
        yield Made(name, folder, environ, folder / "data", folder / "record.json", json.loads(done.stdout))


@pytest.fixture(scope="module")
def to(made: Made) -> Iterator[Registry]:
    with Transport() as transport:
        yield Registry(parse_reference(made.name).registry, transport, {})


@pytest.fixture(scope="module")
def subject(made: Made, to: Registry) -> Subject:
    return find_subject(parse_reference(made.name), to)


@pytest.fixture(scope="module")
def team(made: Made) -> PrivateKey:
    return read_private(made.folder / "team.key", None)


@pytest.fixture(scope="module")
def stranger(made: Made) -> PublicKey:
    return read_public(made.folder / "stranger.key.pub")


@pytest.fixture(scope="module")
def said(subject: Subject, to: Registry, team: PrivateKey) -> dict[str, Attestation]:
    """What is attached, by kind, each signed by the team's key."""
    found = read_attached(subject, to, [team.public]).attestations
    assert [one.status for one in found] == [Status.VALID] * 3
    return {one.kind: one for one in found}


def predicate(one: Attestation) -> dict[str, Any]:
    assert one.statement is not None
    return dict(one.statement.predicate)


def test_inspect_says_what_is_in_it_and_who_proved_it(made: Made) -> None:
    done = made.envkit("inspect", made.name, "--key", "team.key.pub", "--require", "proved", "--json")
    assert done.returncode == 0, done.stderr
    tree, record = json.loads(done.stdout), json.loads(made.record.read_text())
    assert (tree["schema"], tree["verdict"], tree["refused"]) == ("envkit.inspect/1", "proved", [])
    assert tree["contents"]["python"] == "3.11"
    (run,) = tree["verifications"]
    assert run["signature"] == "valid"
    assert (run["verdict"], run["started"]) == (record["summary"]["verdict"], record["run"]["started"])
    assert tree["packages"]["conda"] == made.attested["packages"]["conda"] > 5
    text = made.envkit("inspect", made.name, "--key", "team.key.pub")
    assert f"verified since {record['run']['started'][:10]} on 1 kind of machine\n" in text.stdout
    assert "signed by the key" in text.stdout


@pytest.mark.requirement("R60")
def test_a_record_that_contradicts_itself_is_not_signed(made: Made) -> None:
    """Its verdict was edited, and its seal fits."""
    tree = json.loads(made.record.read_text())
    tree["summary"] |= {"verdict": "FAIL", "exit_code": 6}
    (made.folder / "edited.json").write_text(json.dumps(resealed(tree)))
    done = made.envkit("attest", made.name, "--record", "edited.json", "--key", "team.key")
    assert done.returncode == 10, done.stderr
    assert "error: edited.json: the record contradicts itself" in done.stderr


def test_again_attaches_nothing_twice(made: Made) -> None:
    done = made.envkit("attest", made.name, "--record", "record.json", "--key", "team.key", "--json")
    rows = json.loads(done.stdout)["attached"]
    assert [(row["kind"], row["new"]) for row in rows] == [("sbom", False), ("provenance", False), ("verify", False)]
    assert [row["digest"] for row in rows] == [row["digest"] for row in made.attested["attached"]]


def test_the_bill_lists_what_a_stranger_finds_in_the_image(
    made: Made, subject: Subject, said: dict[str, Attestation]
) -> None:
    listed = {
        (one["purl"].partition(":")[2].partition("/")[0], one["name"], one["version"])
        for one in predicate(said["sbom"])["components"]
    }
    assert listed == content_of(made, subject.digest)
    assert len(listed) == sum(made.attested["packages"].values())


@pytest.mark.requirement("R60")
def test_every_locked_package_has_the_locks_hash(made: Made, said: dict[str, Attestation]) -> None:
    (lock,) = (made.folder / "state/envkit/locks").iterdir()
    rows = json.loads(lock.read_text())["conda"]
    bill = {one["name"]: one for one in predicate(said["sbom"])["components"] if one["purl"].startswith("pkg:conda/")}
    assert {row["name"]: row["sha256"] for row in rows} == {
        name: one["hashes"][0]["content"] for name, one in bill.items()
    }
    assert not made.attested["absent"]


def test_the_bill_is_valid_for_its_formats_own_library(said: dict[str, Attestation]) -> None:
    text = json.dumps(predicate(said["sbom"]))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_statements_are_valid_for_in_totos_own_library(said: dict[str, Attestation]) -> None:
    for one in said.values():
        TheirStatement.copy_from_pb(json_format.Parse(one.payload, Message())).validate()
    found = json_format.ParseDict(predicate(said["provenance"]), Provenance())
    names = [one.name for one in found.build_definition.resolved_dependencies]
    assert {"base", "facts", "envkit.lock", "python", "pytorch"} <= set(names)
    assert all(one.digest["sha256"] for one in found.build_definition.resolved_dependencies)
    assert predicate(said["verify"]) == json.loads(said["verify"].payload)["predicate"]


def test_nothing_of_this_machine_is_in_what_is_said_of_the_build(made: Made, said: dict[str, Attestation]) -> None:
    for kind in ("sbom", "provenance"):
        text = said[kind].payload.decode()
        assert str(made.folder) not in text
        assert "127.0.0.1" not in text.replace(parse_reference(made.name).place, "")


@pytest.mark.requirement("R60")
@pytest.mark.parametrize(
    ("what", "place"),
    [("document", 0.1), ("document", 0.5), ("document", 0.9), ("manifest", 0.0), ("manifest", 0.9), ("list", 0.9),
     ("configuration", 0.0), ("image", 0.0)],
)  # fmt: skip
def test_a_flipped_bit_in_the_registrys_storage_is_refused(
    made: Made, subject: Subject, to: Registry, what: str, place: float
) -> None:
    attached = made.attested["attached"][2]["digest"]
    tag = to.manifest(parse_reference(f"{subject.reference.place}:{fallback_tag(subject.digest)}"))
    assert tag is not None
    digest = {
        "document": json.loads(made.blob(attached).read_bytes())["layers"][0]["digest"],
        "manifest": attached,
        "list": tag.digest,
        "configuration": subject.id,
        "image": subject.digest,
    }[what]
    path = made.blob(digest)
    whole = path.read_bytes()
    changed = bytearray(whole)
    # In a digest of a manifest: where it is no JSON any more, the registry itself gives up with 500.
    digests = [found.start() + 20 for found in re.finditer(b"sha256:", whole)]
    changed[digests[int(len(digests) * place)] if what != "document" else int(len(changed) * place)] ^= 1
    path.write_bytes(changed)
    try:
        done = made.envkit("inspect", made.name, "--key", "team.key.pub")
    finally:
        path.write_bytes(whole)
    assert done.returncode == 10, done.stderr
    assert done.stderr.startswith("error: ")


@pytest.fixture
def instead(subject: Subject, to: Registry) -> Iterator[Callable[[bytes, str], None]]:
    """Puts another document in the place of the list, as somebody can who may push; afterwards all is as it was."""
    tag = parse_reference(f"{subject.reference.place}:{fallback_tag(subject.digest)}")
    before = to.manifest(tag)
    assert before is not None

    def put(document: bytes, media_type: str) -> None:
        to.put_manifest(tag, spec.canonical({"schemaVersion": 2, "mediaType": spec.INDEX, "manifests": []}), spec.INDEX)
        kind = {dsse.MEDIA_TYPE: document, dsse.IN_TOTO: None}[media_type]
        attach(to, subject.reference, subject.descriptor, artifact(document, VERIFY, kind))

    yield put
    to.put_manifest(tag, before.data, before.media_type)


def test_changed_words_under_an_old_signature(
    made: Made, instead: Callable[[bytes, str], None], said: dict[str, Attestation], subject: Subject, team: PrivateKey
) -> None:
    lied = resealed({**predicate(said["verify"]), "baseline": {"changed": True}})
    tree = json.loads(dsse.seal(said["verify"].payload, team))
    other = json.loads(dsse.seal(statement_bytes(subject, VERIFY, lied), team))
    instead(json.dumps({**tree, "payload": other["payload"]}).encode(), dsse.MEDIA_TYPE)
    done = made.envkit("inspect", made.name, "--key", "team.key.pub")
    assert done.returncode == 10
    assert "is broken: the signature by" in done.stderr
    assert "does not match the signed document" in done.stderr


def test_a_record_that_was_edited_before_it_was_signed(
    made: Made, instead: Callable[[bytes, str], None], said: dict[str, Attestation], subject: Subject, team: PrivateKey
) -> None:
    record = predicate(said["verify"])
    record["summary"] = {**record["summary"], "verdict": "PASS", "counts": {}}
    instead(dsse.seal(statement_bytes(subject, VERIFY, record), team), dsse.MEDIA_TYPE)
    done = made.envkit("inspect", made.name, "--key", "team.key.pub")
    assert done.returncode == 10
    assert "the record was changed after it was written" in done.stderr


@pytest.mark.requirement("R60")
def test_a_foreign_key_and_no_signature_are_refused(
    made: Made, instead: Callable[[bytes, str], None], said: dict[str, Attestation]
) -> None:
    done = made.envkit("inspect", made.name, "--key", "stranger.key.pub", "--json")
    assert done.returncode == 10
    assert "verify" in done.stderr
    assert "is signed by another key" in done.stderr
    assert json.loads(done.stdout)["since"] is None
    instead(said["verify"].payload, dsse.IN_TOTO)
    done = made.envkit("inspect", made.name, "--key", "team.key.pub")
    assert done.returncode == 10
    assert "is not signed" in done.stderr
    done = made.envkit("inspect", made.name)
    assert done.returncode == 0
    assert "unsigned" in done.stdout


def test_a_list_that_lies_about_a_kind_is_refused(
    made: Made, instead: Callable[[bytes, str], None], said: dict[str, Attestation], to: Registry, subject: Subject
) -> None:
    instead(said["verify"].payload, dsse.IN_TOTO)
    tag = parse_reference(f"{subject.reference.place}:{fallback_tag(subject.digest)}")
    held = to.manifest(tag)
    assert held is not None
    to.put_manifest(tag, held.data.replace(ARTIFACT.encode(), b"application/vnd.example+json"), spec.INDEX)
    done = made.envkit("inspect", made.name)
    assert done.returncode == 10
    assert "the list entry differs from its manifest" in done.stderr


def test_nothing_attached_is_not_verified(made: Made, to: Registry, tmp_path: Path) -> None:
    reference = parse_reference(made.name.replace("/team/cpu", "/team/bare"))
    push(image_of(tmp_path), reference, to, Heard())
    assert made.envkit("inspect", str(reference)).returncode == 0
    done = made.envkit("inspect", str(reference), "--key", "team.key.pub")
    assert done.returncode == 5
    assert "no document is attached" in done.stderr


def test_a_record_of_another_image_is_refused(made: Made, to: Registry, tmp_path: Path) -> None:
    reference = parse_reference(made.name.replace("/team/cpu", "/team/other"))
    push(image_of(tmp_path, salt="other"), reference, to, Heard())
    done = made.envkit("attest", str(reference), "--record", "record.json", "--key", "team.key")
    assert done.returncode == 10
    assert "record.json: the record is for another image: sha256:" in done.stderr
    assert not read_attached(find_subject(reference, to), to, []).attestations


def test_a_record_that_was_changed_is_refused(made: Made) -> None:
    (made.folder / "edited.json").write_text(made.record.read_text().replace('"WARN"', '"PASS"'))
    done = made.envkit("attest", made.name, "--record", "edited.json", "--key", "team.key")
    assert done.returncode == 10
    assert "the record was changed after it was written" in done.stderr


def test_what_says_of_another_image_does_not_count_here(
    made: Made, to: Registry, said: dict[str, Attestation], team: PrivateKey, tmp_path: Path
) -> None:
    reference = parse_reference(made.name.replace("/team/cpu", "/team/replay"))
    push(image_of(tmp_path, salt="replay"), reference, to, Heard())
    other = find_subject(reference, to)
    for kind, predicate_type in (("verify", VERIFY), ("sbom", SBOM), ("provenance", PROVENANCE)):
        sealed = dsse.seal(said[kind].payload, team)
        attach(to, other.reference, other.descriptor, artifact(said[kind].payload, predicate_type, sealed))
    found = read_attached(other, to, [team.public]).attestations
    assert [one.status for one in found] == [Status.BROKEN] * 3
    assert all("not about this image" in (one.why or "") for one in found)
    assert made.envkit("inspect", str(reference)).returncode == 10


def test_a_registry_with_the_referrers_api_keeps_the_list_itself(made: Made, team: PrivateKey, tmp_path: Path) -> None:
    with referrers_before(parse_reference(made.name).registry) as host, Transport() as transport:
        reference = parse_reference(f"{host}/team/modern:1")
        modern = Registry(host, transport, {})
        push(image_of(tmp_path, salt="modern"), reference, modern, Heard())
        image = find_subject(reference, modern)
        payloads = [statement_bytes(image, NOTE, {"number": number}) for number in range(5)]
        for payload in payloads:
            done = attach(
                modern, image.reference, image.descriptor,
                artifact(payload, NOTE, dsse.seal(payload, team)),
            )  # fmt: skip
            assert (done.new, done.listed_by) == (True, "registry")
        found = read_attached(image, modern, [team.public]).attestations
        assert sorted(one.payload for one in found) == sorted(payloads)
        assert {one.status for one in found} == {Status.VALID}
        assert modern.manifest(parse_reference(f"{image.reference.place}:{fallback_tag(image.digest)}")) is None
        again = artifact(payloads[0], NOTE, dsse.seal(payloads[0], team))
        assert not attach(modern, image.reference, image.descriptor, again).new


def test_many_may_attach_to_one_image_at_the_same_time(
    made: Made, to: Registry, team: PrivateKey, tmp_path: Path
) -> None:
    reference = parse_reference(made.name.replace("/team/cpu", "/team/crowd"))
    push(image_of(tmp_path, salt="crowd"), reference, to, Heard())
    image = find_subject(reference, to)
    payloads = [statement_bytes(image, NOTE, {"number": number}) for number in range(6)]

    def one(payload: bytes) -> str:
        return attach(
            to, image.reference, image.descriptor, artifact(payload, NOTE, dsse.seal(payload, team))
        ).listed_by

    with ThreadPoolExecutor(len(payloads)) as pool:
        assert set(pool.map(one, payloads)) == {"tag"}
    found = read_attached(image, to, [team.public]).attestations
    assert sorted(one.payload for one in found) == sorted(payloads)


def test_an_index_of_several_images_is_no_subject(made: Made, to: Registry, subject: Subject) -> None:
    rows = [subject.descriptor.to_json() | {"platform": {"os": "linux", "architecture": "amd64"}}]
    tag = parse_reference(f"{subject.reference.place}:many")
    to.put_manifest(tag, spec.canonical({"schemaVersion": 2, "mediaType": spec.INDEX, "manifests": rows}), spec.INDEX)
    done = made.envkit("inspect", str(tag))
    assert done.returncode == 2
    assert f"use a digest: {subject.reference.place}@{subject.digest}" in done.stderr


def content_of(made: Made, digest: str) -> set[tuple[str, str, str]]:
    """Kind, name and version of what is installed, found without any code of envkit: tarfile and dpkg's own words."""
    files: dict[str, bytes] = {}
    for layer in json.loads(made.blob(digest).read_bytes())["layers"]:
        # A layer is a gzip file of many members, which tarfile's own reading of gzip takes for one.
        with gzip.open(made.blob(layer["digest"])) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
            for member in tar:
                path = posixpath.normpath(member.name).lstrip("/")
                assert not posixpath.basename(path).startswith(".wh."), "then this stranger has to know of it"
                if member.isfile() and re.search(r"conda-meta/.*\.json$|dist-info/METADATA$|dpkg/status$", path):
                    source = tar.extractfile(member)
                    assert source is not None
                    files[path] = source.read()
    conda = [json.loads(text) for path, text in files.items() if "/conda-meta/" in path]
    own = {f"opt/env/{file}" for tree in conda for file in tree["files"]}
    wheels = [text.decode() for path, text in files.items() if path.endswith("METADATA") and path not in own]
    debian = re.findall(
        r"^Package: (\S+)\n(?:.+\n)*?Version: (\S+)$", files["var/lib/dpkg/status"].decode(), re.MULTILINE
    )
    return {
        *(("conda", tree["name"], tree["version"]) for tree in conda),
        *(("pypi", *re.findall(r"^(?:Name|Version): (\S+)$", text, re.MULTILINE)[:2]) for text in wheels),
        *(("deb", package, version) for package, version in debian),
    }
