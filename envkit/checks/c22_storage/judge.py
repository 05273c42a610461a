"""C22: storage throughput past the page cache. It informs, because nothing here says what a job needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_CORRUPT = "Storage, its cable or memory corrupts data: read the kernel log (dmesg), test memory and disk."
_READABLE = "The run reads as the image's user without privileges: `chmod -R a+rX DIR` makes the files readable for it."
_CACHED = "Run it on a file system with direct I/O (ext4, xfs), or drop the host's page cache before."


def judge(case: Case) -> Finding:
    """Judge image_read, image_random, data_read, data_random or scratch_write."""
    kind = case.observed.get("filesystem") or "an unknown file system"
    if case.observed.get("exact") is False:
        case.rule("equals", gates=False)
        return case.fail("BYTES_CHANGED", f"the bytes read back differ from the file ({kind})", _CORRUPT)
    case.rule("informs", gates=False)
    if case.part.endswith("_random"):
        rate, middle, late = case.value("reads_per_s"), case.value("median_ms"), case.value("p99_ms")
        case.metric("reads", rate, "1/s", "higher")
        message = f"random reads of 4 KiB: {rate:.0f} reads/s, {middle:.2f} ms, 1 in 100 above {late:.2f} ms ({kind})"
    else:
        rate = case.value("gb_per_s")
        case.metric("bandwidth", rate, "GB/s", "higher")
        what = "write and sync" if case.part == "scratch_write" else "sequential read"
        message = f"{shown_size(case.value('bytes'), 'MiB')} {what}: {rate:.2f} GB/s ({kind})"
    unread = case.optional("unreadable_files")
    if unread:
        return case.warn("DATA_UNREADABLE", f"{message}; {unread:g} files of the folder cannot be read", _READABLE)
    if case.observed.get("direct") is not None and not case.flag("direct"):
        message = f"{message}; this file system has no direct I/O, so the page cache may have served the data"
        return case.warn("PAGE_CACHE", message, _CACHED)
    return case.passed(message)
