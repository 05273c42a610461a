"""Each measure sees the rule broken: a made-up package with a second place fails it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import measures


def package(folder: Path, **sources: str) -> list[measures.Module]:
    """Write a package `made` of these modules; `below__name` lies in the package `below`."""
    root = folder / "made"
    for name, text in {"__init__": "", **sources}.items():
        path = root / f"{name if name == '__init__' else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return measures.modules(root)


@pytest.mark.parametrize(
    "second", ["import fcntl\nfcntl.flock(3, fcntl.LOCK_EX)", "from fcntl import lockf\n\ndef f():\n    lockf(3, 1)"]
)
def test_a_second_lock_is_seen(tmp_path: Path, second: str) -> None:
    first = '"""Uses fcntl.flock(2)."""\nimport fcntl\nfcntl.flock(1, 2)'
    assert measures.lock_callers(package(tmp_path, store=first, other="'fcntl.flock(1)'", third=second)) == {
        "made.store", "made.third"
    }  # fmt: skip


_NOT_OPENED = """
import dataclasses, gzip, os, tarfile
TEXT = "a".replace("b", "c")
dataclasses.replace(TEXT, x=1)
tarfile.open("a", "r:gz")
gzip.open("a", "rb")
def f(store, reference, path):
    store.open(reference)
    store.open(path, patience=3)
    os.replace
    path.exists()
"""


@pytest.mark.parametrize(
    "second",
    [
        "from pathlib import Path\nPath('x').read_text()",
        "def f(path):\n    return path.read_bytes()",
        "def f(path):\n    with path.open() as file:\n        return file",
        "def f(path):\n    with path.open('rb') as file:\n        return file",
        "def f(path):\n    with path.open(mode='rb', buffering=0) as file:\n        return file",
        "def f(path):\n    return open(path)",
        "def f(path):\n    return open(path, encoding='utf-8')",
        "import os\ndef f(path):\n    return os.open(path, os.O_RDONLY)",
    ],
)
def test_a_second_way_to_open_a_file_is_seen(tmp_path: Path, second: str) -> None:
    assert measures.openers(package(tmp_path, none=_NOT_OPENED, second=second)) == {"made.second"}


@pytest.mark.parametrize("second", ["path.is_file()", "(folder / name).is_dir()", "all(x.exists() for x in paths)"])
def test_a_probe_of_pathlib_is_seen(tmp_path: Path, second: str) -> None:
    none = "from made import foreign\nforeign.is_file(path)\nforeign.exists(folder / name)"
    assert measures.probers(package(tmp_path, none=none, second=second)) == {"made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "import tomllib",
        "def f(text):\n    import tomllib\n    return tomllib.loads(text)",
        "from tomllib import loads",
        "import json\ndef f(text):\n    return json.loads(text)",
        "import json\ndef f(file):\n    return json.load(file)",
        "from json import loads",
        "import yaml",
    ],
)
def test_a_second_parser_is_seen(tmp_path: Path, second: str) -> None:
    none = "import json\nfrom json import dumps\nTEXT = json.dumps([1])\ndef f(reader):\n    return reader.loads('x')"
    assert measures.parsers(package(tmp_path, none=none, second=second)) == {"made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "def f(path):\n    path.write_text('x')",
        "def f(path):\n    path.write_bytes(b'x')",
        "def f(path):\n    return path.open('wb')",
        "def f(path):\n    return path.open('x', encoding='utf-8')",
        "def f(path):\n    return open(path, 'a')",
        "def f(path):\n    return path.open('r+b')",
        "def f(path, other):\n    path.replace(other)",
        "def f(path, other):\n    path.rename(other)",
        "import os\ndef f(path, other):\n    os.replace(path, other)",
        "from made.store import write_atomic",
        "from made import store\ndef f(path):\n    store.write_atomic(path, b'')",
    ],
)
def test_a_second_way_to_write_a_file_is_seen(tmp_path: Path, second: str) -> None:
    none = f"{_NOT_OPENED}\ndef g(path):\n    path.open('rb')\n    path.read_text()"
    assert measures.writers(package(tmp_path, none=none, store="", second=second)) == {"made.second"}


def test_whoever_takes_a_name_is_seen(tmp_path: Path) -> None:
    two, three = "from made.one import entries", "def late():\n    from made.one import Kind, entries"
    found = package(tmp_path, one="entries = 1\nKind = 2", two=two, three=three, four="from made.one import Kind")
    assert measures.takers(found, "made.one", "entries") == {"made.two", "made.three"}


def test_a_text_and_a_keyword_are_seen_wherever_they_are(tmp_path: Path) -> None:
    two = "def f():\n    return [one.load(host=True), 'x.toml']"
    found = package(tmp_path, one='"""Reads x.toml."""\nload(1)', two=two, three="load(host=False)\nother(host=1)")
    assert measures.literals(found, "x.toml") == {"made.two"}
    assert measures.with_keyword(found, "load", "host") == {"made.two", "made.three"}


@pytest.mark.parametrize(
    "second",
    [
        "import os\nos.environ.get('XDG_CACHE_HOME')",
        "import os\nos.environ['XDG_CACHE_HOME']",
        "from pathlib import Path\nPath.home() / '.cache'",
        "from pathlib import Path\nPath('~/.cache/envkit').expanduser()",
    ],
)
def test_a_second_way_to_the_cache_is_seen(tmp_path: Path, second: str) -> None:
    hint = "HINT = 'set XDG_CACHE_HOME to a folder'\nNAMES = {'cache': 'XDG_CACHE_HOME'}\nIN_IMAGE = '/home/.cache/pip'"
    assert measures.cache_finders(package(tmp_path, hint=hint, second=second)) == {"made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "from made.tagging import move_tag\ndef f(reference):\n    move_tag(reference, 'sha256:0', None)",
        "def f():\n    from made.tagging import move_tag as move",
        "from made import tagging\ndef f(reference):\n    tagging.move_tag(reference, 'sha256:0', None)",
        "def f(registry, reference):\n    registry.put_manifest(reference, b'', 'json')",
        "def f(self, built):\n    self._engine.tag(built.id, 'train:1')",
    ],
)
def test_a_second_way_to_set_a_tag_is_seen(tmp_path: Path, second: str) -> None:
    none = "from made.tagging import check_tag\ncheck_tag(1)\nimage.tag('x')\nTEXT = 'move_tag(a, b)'\ntag(1, 2)"
    assert measures.tag_setters(package(tmp_path, none=none, second=second)) == {"made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "NAMES = {'linux-64': 'amd64', 'linux-aarch64': 'arm64'}",
        "def name(machine):\n    return 'amd64' if machine == 'x86_64' else 'arm64'",
        "BOTH = ('x86_64', 'aarch64')",
    ],
)
def test_a_second_table_of_architectures_is_seen(tmp_path: Path, second: str) -> None:
    one = '"""Takes x86_64 and aarch64."""\nDEFAULT = "linux-64"\nTEXT = "needs x86_64 or aarch64"'
    assert measures.architecture_tables(package(tmp_path, one=one, second=second)) == {"made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "def f(text):\n    return text.startswith('registry:')",
        "def f(text):\n    return text.startswith(('oci:', 'docker-archive:'))",
        "def f(text):\n    return text.removeprefix('docker-daemon:')",
        "PREFIX = 'registry:'\ndef f(text):\n    return text.startswith(PREFIX)",
        "LAYOUT, ARCHIVE = 'oci', 'docker-archive'\ndef f(text):\n    return text.startswith(f'{ARCHIVE}:')",
        "from made.name import LAYOUT\ndef f(text):\n    return text.partition(':')[0] == LAYOUT",
        "from made.name import PREFIX\ndef f(text):\n    return text.startswith(PREFIX + 'localhost/')",
        "def f(text):\n    kind = text.partition(':')[0]\n    return kind in ('oci', 'registry')",
        "def f(text):\n    match text.partition(':')[0]:\n        case 'docker-archive':\n            return True",
        "import re\nPINNED = re.compile(r'.+@sha256:[0-9a-f]{64}')",
    ],
)
def test_a_second_parser_of_names_is_seen(tmp_path: Path, second: str) -> None:
    name = "LAYOUT, PREFIX = 'oci', 'registry:'\ndef parse(text):\n    return text.startswith(f'{LAYOUT}:')"
    none = """
import re
from made.name import LAYOUT, PREFIX
HINT = f'name it as {LAYOUT}:DIR or {PREFIX}HOST/NAME'
ID = re.compile('sha256:([0-9a-f]{64})')
def f(path, text, image):
    match image:
        case InLayout(path=path):
            return f'oci:{path}'
    return text.startswith('https://') or isinstance(image, InRegistry) or text.partition(':')
"""
    found = package(tmp_path, name=name, none=none, second=second)
    assert measures.name_parsers(found) == {"made.name", "made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "def f(folder):\n    return folder / 'downloads'",
        "def f(folder, key):\n    return folder / 'layers' / key",
        "FOLDER = 'downloads'\ndef f(folder):\n    return folder / FOLDER",
        "def f(sha256):\n    return f'downloads/{sha256}'",
        "def f(folder, name):\n    return folder.joinpath('layers/blobs', name)",
        "from made.paths import cache_dir\ndef f(name):\n    return cache_dir() / name",
        "class A:\n    def f(self, name):\n        return self._cache / name",
        "def f(site, name):\n    return site.cache.root.joinpath(name)",
        "def f(cache):\n    return sorted(cache.iterdir())",
        "import os\ndef f(cache):\n    return os.scandir(cache)",
    ],
)
def test_a_second_module_that_knows_the_folders_of_the_cache_is_seen(tmp_path: Path, second: str) -> None:
    none = """
from made.kinds import DOWNLOADS
WORD = 'downloads'
def f(cache, size, names):
    where = f'{cache}: {size / 1e9:.1f} GB of downloads'
    return DOWNLOADS.at(cache, 'downloads'), names['downloads'], names['blobs'] / 2, where, f'{WORD} {size}'
"""
    found = package(tmp_path, none=none, second=second)
    assert measures.cache_paths(found, {"downloads", "layers/blobs"}) == {"made.second"}


def test_a_second_table_of_kinds_is_seen(tmp_path: Path) -> None:
    found = package(
        tmp_path,
        cache="class Kind: ...\nA = Kind()",
        none="from made.cache import A, Kind\ndef f(kind: Kind) -> None: ...",
        other="class Kind: ...\nA = Kind()",
        second="from made.cache import Kind\nB = Kind()",
    )
    assert measures.callers(found, "made.cache", "Kind") == {"made.cache", "made.second"}


@pytest.mark.parametrize(
    "second", ["GONE = '.wh.'", "from made.paths import OPAQUE", "from made import paths\nprint(paths.WHITEOUT)"]
)
def test_a_second_reading_of_whiteouts_is_seen(tmp_path: Path, second: str) -> None:
    paths = '"""Names that begin with .wh. remove others."""'
    assert measures.whiteout_readers(package(tmp_path, paths=paths, second=second)) == {"made.second"}


def test_a_second_home_of_a_schema_is_seen(tmp_path: Path) -> None:
    one = '"""Writes envkit.plan/1."""\nSCHEMA = "envkit.plan/1"\nTEXT = "not an envkit.plan/1"'
    found = measures.schema_homes(package(tmp_path, one=one, two='READ = ("envkit.plan/1", "envkit.lock/2")'))
    assert found == {"envkit.plan/1": {"made.one", "made.two"}, "envkit.lock/2": {"made.two"}}


@pytest.mark.parametrize(
    "second",
    [
        "import click\n@click.option('--x')\ndef command(x): ...",
        "import click\nADD = click.argument('file')",
        "import click\ndef add(command):\n    command.params.append(click.Option(['--x']))",
        "from click import option",
    ],
)
def test_a_second_way_to_add_an_option_is_seen(tmp_path: Path, second: str) -> None:
    one = "import click\ndef is_option(one):\n    return isinstance(one, click.Option) and click.Path()"
    assert measures.parser_options(package(tmp_path, one=one, second=second)) == {"made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "from made.declare import option\nX = option('--x')",
        "from made.declare import option\n@option('--x')\ndef command(x): ...",
        "from made.declare import argument as put\nclass Flags:\n    x = put()",
        "from made.declare import option\nclass Flags:\n    x: str\nOPTIONS = (option('--x'), option('--y'))",
        "from made.declare import option\ndef add(kind):\n    kind.x = option('--x')",
    ],
)
def test_an_option_that_is_no_field_is_seen(tmp_path: Path, second: str) -> None:
    one = (
        "from made.declare import group, option\ndef shared(text):\n    return option('--x', help=text)\n"
        "class Flags:\n    x: str = shared('a')\n    y: bool = option('--y')\n    z: Other = group(Other)\n"
    )
    declare = "def option(*names): ...\nADDED = option('-v')"
    found = package(tmp_path, declare=declare, one=one, other="option('--x')", second=second)
    assert measures.loose_options(found, "made.declare") == {"made.second"}


_FIELDS = """
class A:
    x: bool = flag("--x", help="X.")
    y: bool = flag("--y", help="Y.")
    z: str = other("--z", help="Z.")
"""


def test_an_option_that_is_declared_twice_is_seen(tmp_path: Path) -> None:
    second = (
        "def y():\n    return flag(\n        '--y', help='Y.'\n    )\nclass B:\n    x: str = option('--x', help='X.')"
    )
    found = package(tmp_path, one=_FIELDS, second=second, third="class C:\n    z: str = other('--z', help='Z.')")
    assert {text: count for (text, _), count in measures.option_declarations(found).items()} == {
        "X.": 1, "Y.": 2
    }  # fmt: skip


@pytest.mark.parametrize(
    "second",
    [
        "def f(own, archs):\n    return [x for x in archs if x[0] == own[0] and x[1] <= own[1]]",
        "def f(major, minor, arch):\n    return g(arch)[0] == major and g(arch)[1] <= minor and arch != 'a'",
    ],
)
def test_a_second_rule_of_compute_capabilities_is_seen(tmp_path: Path, second: str) -> None:
    none = "def f(a, b):\n    return a[0] == b[0] and a[1] == b[1] or (a[0] > 1 and b[1] < 3)"
    assert measures.gpu_rules(package(tmp_path, none=none, second=second)) == {"made.second"}


@pytest.mark.parametrize("second", ["_GB = {3: 0.8, 4: 1.6, 5: 3.2}", "def f(row):\n    return row['gt_per_s'] / 8"])
def test_a_second_table_of_pcie_lanes_is_seen(tmp_path: Path, second: str) -> None:
    none = "A = {'8.0': 3, '16.0': 4, '32.0': 5}\nB = {3: 0.1, 4: 0.9, 5: 0.2}\nC = {3: 1, 4: 2, 5: 4}"
    assert measures.lane_tables(package(tmp_path, none=none, second=second)) == {"made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "def f(faults):\n    raise UsageError(faults[0], details=shown(faults[1:]), hint='')",
        "def f(where, faults):\n    return UsageError(faults[0], details=tuple(f'{where}: {x}' for x in faults[1:]))",
        "class Faults:\n    def f(self):\n        raise errors.IntegrityError(self.all[0], details=self.all[1:])",
        "def f(faults):\n    first, *others = faults\n    raise UsageError(first, details=shown(others))",
    ],
)
def test_a_second_list_of_errors_is_seen(tmp_path: Path, second: str) -> None:
    none = (
        "def f(lines, faults):\n    faults.refuse()\n    raise UsageError('x', details=shown(lines))\nprint(lines[1:])"
    )
    assert measures.fault_lists(package(tmp_path, none=none, second=second)) == {"made.second"}


def test_whoever_imports_a_package_from_outside_is_seen(tmp_path: Path) -> None:
    found = package(
        tmp_path,
        run__inner="X = 1",
        run__other="from made.run import inner",
        a="from made.run.inner import X",
        b="def late():\n    from made.run import inner",
        c="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import made.run.inner",
        d="from .run import inner",
        e="import made.runner",
    )
    assert measures.importers(found, "made.run") == {"made.a", "made.b", "made.c", "made.d"}


def test_slices_are_short_and_have_one_importer(tmp_path: Path) -> None:
    found = package(
        tmp_path,
        short="X = 1",
        shared="X = 1",
        long="\n".join(["X = 1"] * 60),
        a="from made import long, shared, short",
        b="from made.shared import X",
    )
    assert measures.slices(found, 60) == {"made.short": "made.a"}


def test_circles_are_seen_however_long(tmp_path: Path) -> None:
    found = package(
        tmp_path,
        a="from made import b",
        b="def late():\n    from made.c import X",
        c="import made.a\nX = 1",
        d="from made import a",
        e="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made import f",
        f="from made import e",
    )
    assert measures.cycles(found) == [["made.a", "made.b", "made.c"]]


@pytest.mark.parametrize(
    ("concept", "second"),
    [
        ("variables", "BAD = ('CUDA_LAUNCH_BLOCKING', 'TORCHDYNAMO_DISABLE')"),
        ("variables", "def off(env):\n    return 'NCCL_P2P_DISABLE' in env or 'NCCL_ALGO' in env"),
        ("CUDA", "CAUSES = {'no kernel image is available': 1, 'busy or unavailable': 2}"),
        ("CUDA", "NAMES = ['cudaErrorAssert', 'cudaErrorNoDevice']"),
        ("NVML", "def why(text):\n    return 'Insufficient Permissions' in text or 'GPU is lost' in text"),
        ("cuDNN", "A = r'CUDNN_STATUS_NOT_INITIALIZED|CUDNN_STATUS_BAD_PARAM'"),
        ("NCCL", "A = {'unhandled system error': 'network', 'ncclRemoteError': 'peer'}"),
        ("Xid", "ADVICE = {'Xid 79': 'GPU has fallen off the bus', 'Xid 48': 'memory'}"),
        ("compile", "CAUSES = (('Python.h', 1), ('No working C++ compiler', 2))"),
        ("hook", "CAUSES = (('nvidia-container-cli: device error', 1), ('ldcache error', 2))"),
        ("states", "BAD = {'OOMKilled', 'CrashLoopBackOff'}"),
        ("tools", "PREFIXES = ('slurmstepd: ', 'collect2: ')"),
    ],
)
def test_a_second_table_of_a_concept_is_seen(concept: str, second: str, tmp_path: Path) -> None:
    one = '"""CUDA_LAUNCH_BLOCKING, NVIDIA_TF32_OVERRIDE, Xid 79, Xid 48."""\nTEXT = "unset CUDA_LAUNCH_BLOCKING"'
    found = measures.concept_tables(package(tmp_path, one=one, second=second))
    assert found[concept] == {"made.second"}
    assert {module for modules in found.values() for module in modules} == {"made.second"}


_NO_SIZE = """
def f(size, rate, mib, share, ratio, unit, shown_size):
    shown_size(size, "MB")
    return f"{rate:.1f} GB/s", f"{mib} MiB", f"{share / 2:.0%} of it", f"{ratio:.2f} {unit}", "32 GB", size / 1e9
"""


@pytest.mark.parametrize(
    "second",
    [
        'f"{size / 1e9:.2f} GB"',
        'f"({sum(sizes) / MB:.0f} MB of layers)"',
        'f"{most >> 20} MiB"',
        'f"{memory // 2**20}MiB"',
        'f"{rate / 1e9:.1f} GB/s"',
        'f"{gigabytes:.1f} GB free"',
        'f"{size / factor:.{digits}f} {unit}"',
        '"{:.1f} GiB".format(gibibytes)',
    ],
)
def test_a_second_text_of_a_size_is_seen(tmp_path: Path, second: str) -> None:
    found = package(tmp_path, none=_NO_SIZE, second=f"def f():\n    return {second}")
    assert measures.size_formatters(found) == {"made.second"}


_NO_COLUMNS = """
WIDTH = 8
def f(name, size, value):
    b"x".ljust(512, b"0")
    return f"{name:<8}  {size:>{WIDTH - 2}}", f"{value:.{size}f}", " " * size, " " * (WIDTH - 2), name.ljust(WIDTH)
"""


@pytest.mark.parametrize(
    "second",
    ['f"{name:<{width}}  {text}"', 'f"{name:>{max(widths)}}"', "name.ljust(width)", 'name + " " * (width - len(name))'],
)
def test_a_second_way_to_align_columns_is_seen(tmp_path: Path, second: str) -> None:
    found = package(tmp_path, none=_NO_COLUMNS, second=f"def f():\n    return {second}")
    assert measures.column_padders(found) == {"made.second"}


@pytest.mark.parametrize("second", ['"|" + "---|" * columns', '"| a | b |\\n|---|---:|"', "f\"|{'---|' * texts}\""])
def test_a_second_table_in_markdown_is_seen(tmp_path: Path, second: str) -> None:
    none = '"""Writes |---|---|."""\nLINE = " | ".join("ab")\nRULE = "---"'
    found = package(tmp_path, none=none, second=f"def f():\n    return {second}")
    assert measures.markdown_tables(found) == {"made.second"}
