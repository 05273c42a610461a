import hashlib
import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard

from envkit.assemble.compress import COMPRESSIONS
from envkit.assemble.layer import LayerWriter, write_trees
from envkit.assemble.wheel import Scheme, open_wheel
from envkit.image.spec import LayerDigest
from tests.support.wheels import wheel_entries, write_wheel

DATA = os.urandom(1 << 20) * 9 + b"end"
FILES = {"demo/a.bin": bytes(range(256)) * 40_000, "demo/b.py": b"b = 1\n", "demo/empty": b""}


def _write(compression: str, folder: Path, threads: int = 1) -> tuple[bytes, LayerDigest]:
    sink = io.BytesIO()
    path = write_wheel(folder, wheel_entries(FILES))
    with (
        ThreadPoolExecutor(threads) as pool,
        open_wheel(path, Scheme(python="3.11", prefix="/a")) as tree,
        LayerWriter(sink, compression=compression, threaded=threads > 1, pool=pool if threads > 1 else None) as writer,
    ):
        write_trees([tree], writer)
        writer.add_file("z", io.BytesIO(DATA), size=len(DATA))
        made = writer.close()
    return sink.getvalue(), made


def test_the_tar_inside_is_that_of_the_gzip_layer(tmp_path: Path) -> None:
    _, gzipped = _write("gzip", tmp_path)
    blob, made = _write("zstd", tmp_path)
    assert made.diff_id == gzipped.diff_id
    inner = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(blob), read_across_frames=True).read()
    assert made == LayerDigest(
        digest=hashlib.sha256(blob).hexdigest(), diff_id=hashlib.sha256(inner).hexdigest(), size=len(blob),
        tar_size=len(inner),
    )  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
        stream = archive.extractfile("z")
        assert stream is not None
        assert stream.read() == DATA


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_bytes_do_not_depend_on_the_number_of_threads(tmp_path: Path, compression: str) -> None:
    made = {_write(compression, tmp_path, threads)[1] for threads in (1, 2, 7)}
    assert len(made) == 1
