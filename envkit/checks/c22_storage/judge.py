"""C22: storage throughput past the page cache. It informs, because nothing here says what a job needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.fields import flag, mapping, number, optional_number, part_of
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

_RULE = {"type": "informs", "gates": False}
_CORRUPT = ("Storage, its cable or memory corrupts data: read the kernel log (dmesg), test memory and disk.",)
_READABLE = "The run reads as the image's user without privileges: `chmod -R a+rX DIR` makes the files readable for it."
_CACHED = ("Run it on a file system with direct I/O (ext4, xfs), or drop the host's page cache before.",)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge image_read, image_random, data_read, data_random or scratch_write."""
    observed = mapping(observation, "observed")
    kind = observed.get("filesystem") or "an unknown file system"
    if observed.get("exact") is False:
        message = f"the bytes read back differ from the file ({kind})"
        return Finding(Verdict.FAIL, message, "BYTES_CHANGED", _CORRUPT, {"type": "equals", "gates": False})
    if part_of(observation).endswith("_random"):
        rate = number(observed, "reads_per_s")
        middle, late = number(observed, "median_ms"), number(observed, "p99_ms")
        metric = {"name": "reads", "value": rate, "unit": "1/s", "better": "higher"}
        message = f"random reads of 4 KiB: {rate:.0f} reads/s, {middle:.2f} ms, 1 in 100 above {late:.2f} ms ({kind})"
    else:
        rate = number(observed, "gb_per_s")
        metric = {"name": "bandwidth", "value": rate, "unit": "GB/s", "better": "higher"}
        what = "write and sync" if part_of(observation) == "scratch_write" else "sequential read"
        message = f"{number(observed, 'bytes') / 2**20:.0f} MiB {what}: {rate:.2f} GB/s ({kind})"
    unread = optional_number(observed, "unreadable_files")
    if unread:
        message = f"{message}; {unread:g} files of the folder cannot be read"
        return Finding(Verdict.WARN, message, "DATA_UNREADABLE", (_READABLE,), _RULE, metric)
    if observed.get("direct") is not None and not flag(observed, "direct"):
        message = f"{message}; this file system has no direct I/O, so the page cache may have served the data"
        return Finding(Verdict.WARN, message, "PAGE_CACHE", _CACHED, _RULE, metric)
    return Finding(Verdict.PASS, message, None, (), _RULE, metric)
