"""C22: how fast files are read and written here, past the page cache. It informs: a mounted data set lies elsewhere."""

import mmap
import os
import pathlib
import random
import tempfile
import time

from envkit.smoke import hostfacts, timing
from envkit.smoke.observation import Skip, control, ran, skipped

BLOCK, SMALL = 4 << 20, 4096
READ_BYTES, WRITE_BYTES = 512 << 20, 256 << 20
READS = 400
# Seconds for one kind of access; what was done until then is what counts.
LIMIT_S = 4.0
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def run(ctx):
    """Return C22.image_read, C22.image_random (the file system the image lies on) and C22.scratch_write."""
    largest = largest_file(pathlib.Path(ctx.torch.__file__).parent / "lib")
    if largest is None:
        raise Skip("NO_FILE", "torch has no library of 16 MiB or more to read")
    kind = filesystem(str(largest), hostfacts.read_text("/proc/mounts"))
    return [_sequential(largest, kind), _random(largest, kind, ctx.seed), _write(tempfile.gettempdir())]


def largest_file(folder, least=16 << 20):
    """Return the largest file of at least ``least`` bytes in a folder, None where there is none."""
    files = [path for path in folder.glob("*") if path.is_file()] if folder.is_dir() else []
    biggest = max(files, key=lambda path: path.stat().st_size, default=None)
    return biggest if biggest is not None and biggest.stat().st_size >= least else None


def filesystem(path, mounts):
    """Return the type of the file system that ``path`` lies on, from the text of /proc/mounts; None where unknown."""
    best, kind = "", None
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        mount = words[1].replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, words[2]
    return kind


class Direct:
    """A file opened past the page cache where the file system can; ``direct`` says whether it could."""

    def __init__(self, path):
        try:
            self.fd = os.open(str(path), os.O_RDONLY | getattr(os, "O_DIRECT", 0))
            self.direct = hasattr(os, "O_DIRECT")
        except OSError:
            self.fd = os.open(str(path), os.O_RDONLY)
            self.direct = False
        self.size = os.fstat(self.fd).st_size
        # Anonymous maps begin on a page, which is what direct access asks of its buffer.
        self.buffer = mmap.mmap(-1, BLOCK)
        try:
            self.read(0, SMALL)
        except OSError:
            os.close(self.fd)
            self.fd = os.open(str(path), os.O_RDONLY)
            self.direct = False
        if not self.direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, offset, count):
        """Read up to ``count`` bytes at ``offset`` into the buffer; how many there were."""
        return os.preadv(self.fd, [memoryview(self.buffer)[:count]], offset)

    def close(self):
        """Close the file."""
        os.close(self.fd)


def _sequential(path, kind):
    file = Direct(path)
    try:
        values, done, begin = [], 0, time.perf_counter()
        while done + BLOCK <= min(file.size, READ_BYTES) and time.perf_counter() - begin < LIMIT_S:
            start = time.perf_counter()
            file.read(done, BLOCK)
            values.append((time.perf_counter() - start) * 1e3)
            done += BLOCK
        exact, noticed = _same_bytes(file, path)
    finally:
        file.close()
    took = sum(values) / 1e3
    observed = {
        "exact": exact,
        "filesystem": kind,
        "direct": file.direct,
        "bytes": done,
        "gb_per_s": done / took / 1e9 if took else None,
        "file": path.name,
    }
    samples = timing.sample_record(values, clock="perf_counter", bytes_per_call=BLOCK)
    return ran("C22.image_read", "host", observed, [noticed], samples=samples, stats=timing.statistics(values))


def _random(path, kind, seed):
    file = Direct(path)
    places = random.Random(seed)
    try:
        values, begin = [], time.perf_counter()
        while len(values) < READS and time.perf_counter() - begin < LIMIT_S:
            offset = places.randrange(file.size // SMALL) * SMALL
            start = time.perf_counter()
            file.read(offset, SMALL)
            values.append((time.perf_counter() - start) * 1e3)
        exact, noticed = _same_bytes(file, path)
    finally:
        file.close()
    stats = timing.statistics(values)
    observed = {
        "exact": exact,
        "filesystem": kind,
        "direct": file.direct,
        "reads": len(values),
        "reads_per_s": 1e3 * len(values) / sum(values),
        "median_ms": stats["median"],
        "p99_ms": timing.quantile(sorted(values), 0.99),
    }
    samples = timing.sample_record(values, clock="perf_counter", bytes_per_call=SMALL)
    return ran("C22.image_random", "host", observed, [noticed], samples=samples, stats=stats)


def _same_bytes(file, path):
    """Whether what comes past the cache is the file's content; the control is that a changed byte would be seen."""
    offset = file.size // 2 // SMALL * SMALL
    count = file.read(offset, SMALL)
    direct = file.buffer[:count]
    with path.open("rb") as stream:
        stream.seek(offset)
        plain = stream.read(count)
    return _compared(direct, plain, f"{count} bytes at {offset}")


def _compared(found, expected, detail):
    """Whether both are the same bytes, and the control: with one of them changed they are not."""
    planted = bytearray(expected)
    planted[len(planted) // 2] ^= 1
    return _same(found, expected), control("changed_byte_is_noticed", not _same(planted, expected), detail)


def _same(found, expected):
    return bytes(found) == bytes(expected)


def _write(folder):
    check_id = "C22.scratch_write"
    kind = filesystem(os.path.realpath(folder), hostfacts.read_text("/proc/mounts"))
    if kind in IN_MEMORY:
        return skipped(check_id, "host", "IN_MEMORY", f"the scratch folder is {kind}: memory, and no storage")
    stat = os.statvfs(folder)
    size = min(WRITE_BYTES, stat.f_bavail * stat.f_frsize // 8) // BLOCK * BLOCK
    if size < BLOCK:
        return skipped(check_id, "host", "NO_SPACE", "the scratch folder has no room to write to")
    block, values, done = os.urandom(BLOCK), [], 0
    begin = time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as stream:
        while done < size and time.perf_counter() - begin < LIMIT_S:
            start = time.perf_counter()
            stream.write(block)
            stream.flush()
            os.fdatasync(stream.fileno())
            values.append((time.perf_counter() - start) * 1e3)
            done += BLOCK
        stream.seek(done - BLOCK)
        last = stream.read(BLOCK)
    took = time.perf_counter() - begin
    exact, noticed = _compared(last, block, "the last block read back")
    rate = done / took / 1e9
    observed = {"exact": exact, "filesystem": kind, "bytes": done, "gb_per_s": rate, "synchronised": True}
    samples = timing.sample_record(values, clock="perf_counter", bytes_per_call=BLOCK)
    return ran(check_id, "host", observed, [noticed], samples=samples, stats=timing.statistics(values))
