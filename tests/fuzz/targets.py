"""What is fuzzed: each target takes bytes, and raises only what the reader promises; everything else is a finding."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from envkit.ground.errors import EnvkitError, PayloadError
from envkit.image import zip_entries
from envkit.image.spec import sha256
from envkit.plan import names
from envkit.plan.requirements import Contents, sort
from envkit.plan.requirements import read as read_lines
from envkit.project import conda_files, container_files, toml_files
from envkit.render import lint
from envkit.render.dockerfile import parse
from envkit.render.model import Rendered
from envkit.verify.payload import END_MARK, parse_document
from envkit.watch.events import Collector
from envkit.watch.files import Folder
from envkit.watch.injected import envkit_watch_stream as stream
from tests.support.file_images import read_folder
from tests.support.mutated_dockerfiles import dockerfile as dockerfile_of
from tests.support.wheels import Raw, raw_zip, wheel_entries

NONCE = "0123456789abcdef"
_MANIFEST = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:" + "0" * 64, "size": 2},
    "layers": [],
}
_CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Env": ["A=b"]},
    "rootfs": {"type": "layers", "diff_ids": []},
}


def wheel(data: bytes) -> None:
    """The directory of a wheel: entries that lie apart, inside the file, under names that stay inside."""
    descriptor = os.memfd_create("wheel")
    try:
        os.write(descriptor, data)
        with contextlib.suppress(EnvkitError):
            for entry in zip_entries.entries(descriptor, "a.whl"):
                parts = entry.name.rstrip("/").split("/")
                assert not entry.name.startswith("/"), entry.name
                assert ".." not in parts, entry.name
                assert "\0" not in entry.name, entry.name
    finally:
        os.close(descriptor)


def oci(data: bytes) -> None:
    """The documents of a layout: the first byte says which of them the rest is."""
    which, body = data[:1], data[1:]
    config = body if which == b"c" else json.dumps(_CONFIG).encode()
    manifest = {**_MANIFEST, "config": {**_MANIFEST["config"], "digest": sha256(config), "size": len(config)}}  # type: ignore[dict-item]
    written = body if which == b"m" else json.dumps(manifest).encode()
    row = {"mediaType": _MANIFEST["mediaType"], "digest": sha256(written), "size": len(written)}
    index = body if which == b"i" else json.dumps({"schemaVersion": 2, "manifests": [row]}).encode()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        (folder / "oci-layout").write_bytes(body if which == b"v" else b'{"imageLayoutVersion": "1.0.0"}')
        (folder / "index.json").write_bytes(index)
        for blob in (config, written):
            (blobs / sha256(blob).removeprefix("sha256:")).write_bytes(blob)
        with contextlib.suppress(EnvkitError):
            image = read_folder(folder)
            assert all(layer.blob is not None and layer.blob.is_relative_to(folder) for layer in image.layers)


def payload(data: bytes) -> None:
    """What a container prints: a document whose strings are fit for a terminal, or a PayloadError."""
    with contextlib.suppress(PayloadError):
        document = parse_document(data + b"\n" + f"{END_MARK} {NONCE}".encode() + b"\n", NONCE)
        assert document["nonce"] == NONCE
        text = json.dumps(document, ensure_ascii=False)
        assert "\x1b" not in text
        assert "\u202e" not in text


def template(data: bytes) -> None:
    """A Dockerfile: the lint reads it, and judges the same with another comment on top."""
    text = data.decode("utf-8", "replace")
    made = Rendered(files={"Dockerfile": text.encode()}, build_image="", final_image="", syntax="buildkit")
    found = lint.check(made)
    assert all(0 <= item.line <= text.count("\n") + 1 for item in found)
    parsed = parse(text)
    for item in parsed.instructions:
        assert item.keyword.isascii()
        assert bool(item.fault) <= (not item.pairs)
        assert all(name and name.isprintable() for name, _ in item.pairs)
    if any(item.rule in lint.UNSAFE and item.severity == "error" for item in found):
        return
    # What passes sets no variable that loads code, whichever way its name is written.
    assert not {"LD_PRELOAD", "LD_AUDIT", "BASH_ENV"} & parsed.image.env.keys()


def dockerfile(data: bytes) -> None:
    """A project's Dockerfile: what it gives is fit for a definition, and a comment at its end adds nothing to it."""
    text = data.decode("utf-8", "replace")
    read = [_read(container_files.dockerfile, f"{text}\n{more}") for more in ("", "RUN true # pip install evil-zz\n")]
    if read[0] is None or read[1] is None:
        return
    assert all(names.pip_spec(package.spec) is None for package in read[0].packages)
    assert all(names.deb_package(setting.value) is None for setting in read[0].of("apt"))
    assert "evil-zz" not in {package.spec for package in read[1].packages} - {p.spec for p in read[0].packages}


_PROJECTS: dict[bytes, tuple[str, Callable[[str, Path], Contents]]] = {
    b"e": ("environment.yml", conda_files.environment),
    b"x": ("pixi.toml", conda_files.pixi),
    b"p": ("pyproject.toml", toml_files.pyproject),
    b"c": ("cog.yaml", container_files.cog),
    b"r": ("requirements.txt", lambda name, folder: sort(read_lines(name, folder))),
}


def project(data: bytes) -> None:
    """A project's other files, which the first byte names: what they give is fit for a definition."""
    name, reader = _PROJECTS.get(data[:1], _PROJECTS[b"r"])
    contents = _read(reader, data[1:].decode("utf-8", "replace"), name)
    if contents is not None:
        assert all(names.pip_spec(package.spec) is None for package in contents.packages)
        assert all(names.conda_spec(setting.value) is None for setting in contents.of("conda"))


def _read(reader: Callable[[str, Path], Contents], text: str, name: str = "Dockerfile") -> Contents | None:
    """Read a text as a project's file; None if it is refused."""
    path = _folder() / name
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    with contextlib.suppress(EnvkitError):
        return reader(name, path.parent)
    return None


@cache
def _folder() -> Path:
    name = tempfile.mkdtemp(prefix="fuzz-")
    atexit.register(shutil.rmtree, name, ignore_errors=True)
    return Path(name)


class _Nobody:
    """A training whose processes have all ended."""

    chief: tuple[int, ...] = ()
    peer: str | None = None

    def update(self) -> None:
        """Find nothing."""

    def every(self, more: Iterable[int] = ()) -> set[int]:
        """Return what is asked for."""
        return set(more)

    def is_gone(self, pid: int) -> bool:
        """Return that it is gone."""
        return pid >= 0

    def here(self, pid: int) -> int | None:
        """Return the same process."""
        return pid


def ring(data: bytes) -> None:
    """What a watched job writes: the records of its ring up to a mark, and its facts after it."""
    records, _, facts = data.partition(_FACTS)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        with (folder / "9-1.ring").open("wb") as file:
            file.write(records[: stream.BYTES])
            file.truncate(stream.BYTES)
        (folder / "9-1.facts").write_bytes(facts)
        collector = Collector(Folder(folder), 0.0, _Nobody())
        with contextlib.suppress(EnvkitError):
            collector.collect()
            processes = collector.processes()
            json.dumps([dataclasses.asdict(process) for process in processes], allow_nan=False)
        collector.close()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "wheel": wheel,
    "oci": oci,
    "payload": payload,
    "template": template,
    "dockerfile": dockerfile,
    "project": project,
    "ring": ring,
}


def seeds(name: str) -> list[bytes]:
    """Sound and nearly sound inputs of a target, to begin with."""
    return list(_SEEDS[name]())


def _wheels() -> list[bytes]:
    plain = wheel_entries({"demo/a.py": b"1\n"})
    more = [Raw(name="demo/b", data=b"x" * 99, zip64=True), Raw(name="demo/c/", described_after=True)]
    return [
        raw_zip(plain),
        raw_zip([*plain, *more]),
        raw_zip(plain, zip64=True),
        raw_zip(plain, comment=b"c"),
        raw_zip([]),
    ]


def _documents() -> list[bytes]:
    rows = [b"c" + json.dumps(_CONFIG).encode(), b"m" + json.dumps(_MANIFEST).encode()]
    return [*rows, b'i{"manifests": []}', b'v{"imageLayoutVersion": "1.0.0"}']


def _payloads() -> list[bytes]:
    document = {
        "schema": "envkit.observations/1",
        "nonce": NONCE,
        "checks": [],
        "env": {},
        "suite": "1",
        "started": 0.5,
    }
    return [
        json.dumps(document).encode(),
        b"noise\n" + json.dumps(document).encode(),
        b"{}",
        b'{"a": [1e3, -0, null, "\\u001b"]}',
    ]


def _templates() -> list[bytes]:
    return [dockerfile_of(seed).encode() for seed in range(20)]


def _dockerfiles() -> list[bytes]:
    head = b"FROM python:3.11\n"
    lines = [
        b"RUN pip install einops # old\n",
        b"RUN pip install --progress-bar off -r r.txt 'a>=1' \\\n  b\n",
        b"ARG V=1\nENV A=b C=$V\nRUN if [ $A ]; then pip install x==$V; fi; (cd /a && uv pip install y)\n",
        b"RUN <<EOF\nset -e\nconda install -c pytorch pytorch=2.4.*=cuda12*\nEOF\n",
        b'SHELL ["/bin/bash", "-c"]\nRUN ["pip", "install", "z"]\nRUN bash -c "apt-get install -y git; x || y"\n',
        b"RUN case $A in x|y) a;; esac; for i in 1 2; do b; done; cat <<X > f\nq\nX\n",
        b'RUN echo $(a `b` "${C:-d}") [[ a && b ]] {e,f} >g 2>&1 &\n',
        b"# escape=`\nCOPY . /app\nWORKDIR /app\nUSER 1\nEXPOSE 80\nLABEL a=b\nVOLUME /v\n",
    ]
    return [
        *(head + line for line in lines),
        head + b"".join(lines[:7]),
        *(dockerfile_of(seed).encode() for seed in range(5)),
    ]


def _projects() -> list[bytes]:
    return [
        (
            b"edependencies:\n  - python=3.11\n  - pytorch=2.4.*=cuda12*\n"
            b"  - \"numpy[version='>=1', build=x]\"\n  - pip: [a, -r b]\n"
        ),
        b"echannels: [pytorch]\nvariables: {A: b}\ndependencies: [cpuonly, pytorch-cuda=12.1]\n",
        (
            b"x[workspace]\nchannels = ['conda-forge']\n[dependencies]\npython = '3.11.*'\n"
            b"[feature.gpu.pypi-dependencies]\na = '*'\n"
        ),
        b"p[project]\nname = 'x'\nrequires-python = '>=3.9'\ndependencies = ['torch>=2 ; python_version < \"3.12\"']\n",
        (
            b"p[tool.poetry.dependencies]\npython = '^3.10'\ntorch = {version = '^2.1', source = 'pt'}\n"
            b"[[tool.poetry.source]]\nname='pt'\nurl='https://index.example/whl/cu121'\n"
        ),
        (
            b"p[tool.uv.sources]\ntorch = [{index = 'a', extra = 'b'}]\n"
            b"[[tool.uv.index]]\nname = 'a'\nurl = 'https://index.example/cpu'\n"
            b"[dependency-groups]\nd = ['e', {include-group = 'd'}]\n"
        ),
        b"cbuild:\n  gpu: true\n  python_version: '3.11'\n  python_packages: [a==1]\n  run: [b]\n",
        (
            b"r-i https://index.example/cu121\n-c c.txt\ntorch==2.1.0+cu121 \\\n  --hash=sha256:00\n"
            b"a[b]>=1 ; sys_platform == 'linux'\n-e .\n"
        ),
    ]


def _rings() -> list[bytes]:
    rows = b"".join(
        stream.RECORD.pack(number, float(number), 0.5, 1.0, 0, number % 5, number % 4) for number in range(1, 30)
    )
    facts = [
        b'{"fact": "process", "pid": 9, "ppid": 1, "RANK": "0", "WORLD_SIZE": "2", "program": "t.py"}\n',
        b'{"fact": "loader.0", "num_workers": 2}\n{"fact": "training", "gpu": 0}\n{"fact": "ddp", "world_size": 2}\n',
    ]
    return [rows, rows + _FACTS + b"".join(facts), _FACTS + facts[1], rows[:50] + _FACTS + facts[0]]


_FACTS = b"\nFACTS\n"
_SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "wheel": _wheels,
    "oci": _documents,
    "payload": _payloads,
    "template": _templates,
    "dockerfile": _dockerfiles,
    "project": _projects,
    "ring": _rings,
}
