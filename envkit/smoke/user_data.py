"""The user's own data for C12 and C22: a folder of files, or a Dataset. Observations have counts, but no file names.

Errors of single samples are printed for the user, on lines that begin with SAYS.
"""

import collections
import importlib
import io
import math
import mmap
import os
import pathlib
import random
import re
import stat
import sys
import time

from . import compat, suite, timing
from .observation import control, ran

SAYS = "user data: "
# Limits of the search for files: their number, and seconds.
FILES, SCAN_S = 100000, 10.0
# Samples that have their own mark; with more, several share one.
MARKS = 1 << 24
# Limits of the samples that are tried one by one: their number, and seconds.
TRIED, TRY_S = 512, 5.0
# Seconds of one epoch without workers. If a sample takes more than SLOW_S seconds, a batch is one sample.
EPOCH_S, SLOW_S = 0.25, 0.05
# Bytes that are read of a file that is not an image.
PIECE = 1 << 20
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
SIDE = 224  # pixels, the usual size in training on ImageNet


def files(ctx):
    """Return ({file of the user's folder: bytes}, number of unreadable entries, whether the search was complete).

    Hidden files and folders are left out.
    """
    if "files" not in ctx.notes:
        sizes, lost, whole, begin = {}, [], True, time.monotonic()
        for folder, folders, names in os.walk(ctx.data, onerror=lost.append):
            folders[:] = sorted(name for name in folders if name[0] != ".")
            for path in (pathlib.Path(folder, name) for name in sorted(names) if name[0] != "."):
                try:
                    info = path.stat()
                except OSError as error:
                    lost.append(error)
                    continue
                if stat.S_ISREG(info.st_mode):
                    sizes[path] = info.st_size
            whole = len(sizes) < FILES and time.monotonic() - begin < SCAN_S
            if not whole:
                break
        ctx.notes["files"] = sizes, len(lost), whole
    return ctx.notes["files"]


class Files:
    """The files of a folder as samples: an image is decoded and scaled if Pillow is installed; else the first bytes."""

    def __init__(self, folder, paths):
        self.folder, self.paths = folder, paths
        try:
            from PIL import Image
        except ImportError:
            Image = None  # noqa: N806 - a module
        self.image = Image

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        import torch

        path = self.paths[index]
        picture = self.image is not None and path.suffix.lower() in PICTURES
        with path.open("rb") as stream:
            raw = stream.read(-1 if picture else PIECE)
        if picture:
            raw = self.image.open(io.BytesIO(raw)).convert("RGB").resize((SIDE, SIDE)).tobytes()
        return compat.byte_tensor(torch, raw)

    def name(self, index):
        """Return the file's path below the user's folder."""
        return str(self.paths[index].relative_to(self.folder))

    def collate_fn(self, samples):
        """Concatenate samples of different lengths."""
        import torch

        return torch.cat(samples)


class Samples:
    """The user's data set. A sample that raises is marked for all processes and replaced by the last good sample."""

    def __init__(self, data, report):
        self.data, self.report = data, report
        self.sound = None
        self.failed = mmap.mmap(-1, min(len(data), MARKS))

    def take(self, index):
        """Return sample ``index``, or its replacement."""
        try:
            self.sound = self.data[index]
        except Exception as error:
            mark = index % len(self.failed)
            name = getattr(self.data, "name", "sample {}".format)(index)
            self.report(None if self.failed[mark] else name, error)
            self.failed[mark] = 1
        return self.sound

    def broken(self):
        """Return the number of samples that raised."""
        return self.failed[:].count(1)


class Epoch:
    """Random samples, different ones in every epoch, so that storage is read as in training: data set and sampler."""

    def __init__(self, samples, length, seed):
        self.samples, self.length = samples, length
        self.random = random.Random(seed)
        self.options = {"sampler": self}
        if hasattr(samples.data, "collate_fn"):
            self.options["collate_fn"] = samples.data.collate_fn

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(self.random.choices(range(len(self.samples.data)), k=self.length))

    def __getitem__(self, index):
        return self.samples.take(index)


class Own:
    """The user's data, tried once. ``usable`` is False if no sample can be loaded; ``observation`` has the reason."""

    def __init__(self, ctx):
        self.ctx = ctx
        data = ctx.spec["data"]
        self.dataset = data.get("dataset")
        self.name = "dataset" if self.dataset else "data"
        self.kinds = set()
        self.costs = []
        self.samples = None
        self.error = None
        try:
            with suite.interrupted_after(data["limit_s"]):
                self._try()
        except suite.TimeLimit:
            self.error = "TimeLimit"
        except (Exception, SystemExit) as error:
            self.error = self.report(self.dataset or "the folder", error)
        self.usable = self.error is None and self.samples is not None and self.samples.sound is not None

    def report(self, what, error):
        """Print an error and where it was raised, unless ``what`` is None; return the name of its type."""
        kind = type(error).__name__
        self.kinds.add(kind)
        if what is not None:
            print(SAYS + what, kind, " ".join(str(error).split())[:300], sep=": ", file=sys.stderr, flush=True)
        return kind

    def work(self):
        """Return (batch size, fewest samples per epoch, function that makes the data), as ``loader_bench.works``."""
        cost = max(timing.median(self.costs), 1e-6)
        batch = 8 if cost < SLOW_S else 1
        fewest = max(2 * batch, min(2048, math.ceil(EPOCH_S / cost)))
        return batch, fewest, lambda length: Epoch(self.samples, length, self.ctx.seed)

    def observation(self):
        """Return C12.data."""
        broken = self.samples.broken() if self.samples is not None else 0
        if broken and not self.kinds:  # all were raised in workers: raise one here to get its type
            self.samples.take(self.samples.failed.find(b"\1"))
        observed = {
            "dataset": self.dataset,
            "folder": self._folder() if self.ctx.data is not None else None,
            "error": self.error,
            "samples": len(self.samples.data) if self.samples is not None else 0,
            "tried": len(self.costs),
            "broken": broken,
            "exceptions": sorted(self.kinds),
            "ms_per_sample": timing.median(self.costs) * 1e3 if self.costs else None,
        }
        return ran("C12.data", "host", observed, [_control()])

    def _try(self):
        data = self._made()
        if len(data) == 0:
            return
        self.samples = Samples(data, self.report)
        begin = time.monotonic()
        for index in random.Random(self.ctx.seed).sample(range(len(data)), min(len(data), TRIED)):
            start = time.monotonic()
            self.samples.take(index)
            self.costs.append(time.monotonic() - start)
            if time.monotonic() - begin > TRY_S:
                break

    def _made(self):
        given = [] if self.ctx.data is None else [self.ctx.data]
        if self.dataset is None:
            return Files(given[0], list(files(self.ctx)[0]))
        module, _, name = self.dataset.partition(":")
        made = importlib.import_module(module)
        for part in name.split("."):
            made = getattr(made, part)
        data = made(*given)
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise TypeError("it is not a map-style Dataset, with __len__ and __getitem__")
        return data

    def _folder(self):
        sizes, lost, whole = files(self.ctx)
        endings = [path.suffix.lower() for path in sizes]
        kinds = collections.Counter(end if re.match(r"\.[a-z0-9]{1,6}$", end) else "other" for end in endings)
        return {
            "files": len(sizes),
            "bytes": sum(sizes.values()),
            "kinds": dict(kinds.most_common(5)),
            "lost": lost,
            "whole": whole,
        }


def _control():
    """Return the control that a sample that raises is marked, and others are not."""
    planted = Samples((0, None), lambda *_: None)
    planted.data = {0: 0}
    for index in (0, 1):
        planted.take(index)
    return control("raising_sample_is_noticed", planted.broken() == planted.failed[1] == 1)
