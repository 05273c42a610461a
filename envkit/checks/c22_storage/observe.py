"""C22: how fast files are read and written, past the page cache. It informs."""

import contextlib
import mmap
import os
import pathlib
import random
import tempfile
import time

from envkit.smoke import hostfacts, timing, user_data
from envkit.smoke.observation import control, ran, skipped

BLOCK, SMALL = 4 << 20, 4096
READ_BYTES, WRITE_BYTES = 512 << 20, 256 << 20
READS, OPEN = 400, 32
# Seconds for one kind of access; the rate is that of what was done until then.
LIMIT_S = 4.0
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def run(ctx):
    """Yield sequential and random reads of the user's files, or of the image's largest file, and C22.scratch_write."""
    if ctx.data is None:
        what, paths = "image", largest_file(pathlib.Path(ctx.torch.__file__).parent / "lib")
    else:
        what, paths = "data", [path for path, size in user_data.files(ctx)[0].items() if size]
        random.Random(ctx.seed).shuffle(paths)
    for access in (Sequential, Small):
        yield access(ctx, paths).observation(f"C22.{what}_{access.name}")
    yield _write(tempfile.gettempdir())


def largest_file(folder, least=16 << 20):
    """Return a list with the largest file of at least ``least`` bytes in a folder; empty if there is none."""
    sizes = {path: path.stat().st_size for path in folder.glob("*") if path.is_file()} if folder.is_dir() else {}
    return sorted((path for path in sizes if sizes[path] >= least), key=sizes.get)[-1:]


def filesystem(path, mounts):
    """Return the type of the file system of ``path`` from the text of /proc/mounts, or None if it is unknown."""
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
    """A file opened for direct I/O, past the page cache, if the file system has it; ``direct`` says whether it has."""

    def __init__(self, path):
        try:
            self.fd = os.open(str(path), os.O_RDONLY | getattr(os, "O_DIRECT", 0))
            self.direct = hasattr(os, "O_DIRECT")
        except OSError:
            self.fd = os.open(str(path), os.O_RDONLY)
            self.direct = False
        self.size = os.fstat(self.fd).st_size
        # Anonymous maps are page-aligned, which direct I/O requires of its buffer.
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
        """Read up to ``count`` bytes at ``offset`` into the buffer; return how many there were."""
        return os.preadv(self.fd, [memoryview(self.buffer)[:count]], offset)

    def close(self):
        """Close the file descriptor."""
        os.close(self.fd)


class Sequential:
    """Files read in blocks, one after another. Files that cannot be read are counted."""

    name, block = "read", BLOCK

    def __init__(self, ctx, paths):
        self.paths, self.rng = paths, random.Random(ctx.seed)
        self.own = ctx.data is not None
        self.values, self.bytes, self.unreadable = [], 0, 0
        self.direct, self.compared = True, None
        self.end = time.perf_counter() + LIMIT_S
        with contextlib.ExitStack() as stack:
            self.read(stack)

    def opened(self, stack, path):
        """Return an open file, or None if it cannot be read."""
        try:
            file = stack.enter_context(contextlib.closing(Direct(path)))
            self.compared = self.compared or _same_bytes(file, path)
        except OSError:
            self.unreadable += 1
            return None
        self.direct = self.direct and file.direct
        return file

    def timed(self, file, offset):
        """Read and time one block; return False if it cannot be read."""
        start = time.perf_counter()
        try:
            self.bytes += file.read(offset, self.block)
        except OSError:
            self.unreadable += 1
            return False
        self.values.append((time.perf_counter() - start) * 1e3)
        return True

    def read(self, _):
        """Read the files in order until the limits are reached."""
        for path in self.paths:
            with contextlib.ExitStack() as stack:
                file, offset = self.opened(stack, path), 0
                while file and offset < file.size:
                    if self.bytes >= READ_BYTES or time.perf_counter() > self.end:
                        return
                    offset = offset + BLOCK if self.timed(file, offset) else file.size

    def rates(self):
        """Return the rate of this kind of access."""
        name = {} if self.own else {"file": self.paths[0].name}
        return {"gb_per_s": self.bytes / sum(self.values) / 1e6, **name}

    def observation(self, check_id):
        """Return the observation."""
        if not self.values:
            return skipped(check_id, "host", "NO_FILE", f"no file large enough can be read ({self.unreadable} cannot)")
        observed = {
            "exact": self.compared[0],
            "filesystem": filesystem(os.path.realpath(str(self.paths[0])), hostfacts.read_text("/proc/mounts")),
            "direct": self.direct,
            "bytes": self.bytes,
            "reads": len(self.values),
            "unreadable_files": self.unreadable,
            **self.rates(),
        }
        samples = timing.sample_record(self.values, clock="perf_counter", bytes_per_call=self.block)
        stats = timing.statistics(self.values)
        return ran(check_id, "host", observed, [self.compared[1]], samples=samples, stats=stats)


class Small(Sequential):
    """Small blocks at random offsets of up to OPEN files."""

    name, block = "random", SMALL

    def read(self, stack):
        """Read at random until the limits are reached."""
        some = [self.opened(stack, path) for path in self.rng.sample(self.paths, min(OPEN, len(self.paths)))]
        files = [file for file in some if file]
        while files and len(self.values) < READS and time.perf_counter() < self.end:
            file = self.rng.choice(files)
            if not self.timed(file, self.rng.randrange(-(-file.size // SMALL)) * SMALL):
                files.remove(file)

    def rates(self):
        """Return the rate of this kind of access, and its latency."""
        ordered = sorted(self.values)
        return {
            "reads_per_s": 1e3 * len(ordered) / sum(ordered),
            "median_ms": timing.quantile(ordered, 0.5),
            "p99_ms": timing.quantile(ordered, 0.99),
        }


def _same_bytes(file, path):
    """Return whether direct reads give the file's content, and the control."""
    offset = file.size // 2 // SMALL * SMALL
    count = file.read(offset, SMALL)
    direct = file.buffer[:count]
    with path.open("rb") as stream:
        stream.seek(offset)
        plain = stream.read(count)
    return _compared(direct, plain, f"{count} bytes at {offset}")


def _compared(data, expected, detail):
    """Return whether both are the same bytes, and the control: with one byte changed they must differ."""
    planted = bytearray(expected)
    planted[len(planted) // 2] ^= 1
    return _same(data, expected), control("changed_byte_is_noticed", not _same(planted, expected), detail)


def _same(data, expected):
    return bytes(data) == bytes(expected)


def _write(folder):
    check_id = "C22.scratch_write"
    kind = filesystem(os.path.realpath(folder), hostfacts.read_text("/proc/mounts"))
    if kind in IN_MEMORY:
        return skipped(check_id, "host", "IN_MEMORY", f"the scratch folder is {kind}: memory, not storage")
    stat = os.statvfs(folder)
    size = min(WRITE_BYTES, stat.f_bavail * stat.f_frsize // 8) // BLOCK * BLOCK
    if size < BLOCK:
        return skipped(check_id, "host", "NO_SPACE", "the scratch folder has no free space")
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
