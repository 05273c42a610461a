"""C12 and C22 on the user's own files and Dataset, also where something is wrong with them."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.model import Verdict
from tests.support.payloads import module, observer, ruled

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")
Image = pytest.importorskip("PIL.Image")


def context(folder: Path | None, dataset: str | None = None, *, limit_s: float = 60.0) -> Any:
    told = {"folder": folder is not None, "dataset": dataset, "limit_s": limit_s}
    spec = {"nonce": "0123456789abcdef", "data": told}
    return module("context").Ctx(spec, data=None if folder is None else str(folder))


def tried(ctx: Any) -> tuple[Any, dict[str, Any]]:
    """What the trial of the user's data found, without timing anything."""
    own = module("user_data").Own(ctx)
    item = own.observation()
    json.dumps(item, allow_nan=False)
    assert all(control["held"] for control in item["controls"])
    return own, item


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "class").mkdir(parents=True)
    for number in range(6):
        Image.new("RGB", (32, 24), (number, 0, 0)).save(folder / "class" / f"secret-{number}.png")
    return folder


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module of the user's that can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        (tmp_path / "ours.py").write_text(textwrap.dedent(source))
        monkeypatch.delitem(sys.modules, "ours", raising=False)
        return "ours:make"

    return write


def test_the_files_of_a_folder_are_counted_and_none_is_named(pictures: Path) -> None:
    (pictures / ".hidden").write_bytes(b"x")
    (pictures / "notes.Patient-0815").write_bytes(b"x" * 10)
    own, item = tried(context(pictures))
    folder = item["observed"]["folder"]
    assert own.usable
    assert (folder["files"], folder["kinds"], folder["whole"]) == (7, {".png": 6, "other": 1}, True)
    assert "secret" not in json.dumps(item)
    assert "Patient" not in json.dumps(item)
    finding = ruled(item)
    assert finding.verdict is Verdict.PASS
    assert finding.message.startswith("the files of --data: 7 samples of 7 files, ")


def test_one_broken_file_is_counted_and_named_to_the_user_alone(
    pictures: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (pictures / "secret-broken.png").write_bytes(b"no picture")
    own, item = tried(context(pictures))
    assert own.usable
    assert (item["observed"]["broken"], item["observed"]["exceptions"]) == (1, ["UnidentifiedImageError"])
    assert ruled(item).reason_code == "SAMPLES_BROKEN"
    assert "the others were measured" in ruled(item).message
    assert "secret" not in json.dumps(item)
    assert "user data: secret-broken.png: UnidentifiedImageError" in capfd.readouterr().err


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    own, item = tried(context(tmp_path))
    assert not own.usable
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.WARN, "DATA_EMPTY")


def test_a_folder_in_which_nothing_can_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    own, item = tried(context(tmp_path))
    assert not own.usable
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.WARN, "DATA_UNREADABLE")


def test_without_any_sample_the_throughput_is_left_out(tmp_path: Path) -> None:
    data, throughput = module("loader_bench").run(context(tmp_path))
    assert (data["id"], throughput["id"]) == ("C12.data", "C12.throughput.data")
    assert (throughput["status"], throughput["reason"]["code"]) == ("skip", "NO_DATA")


def test_throughput_and_recommendation_are_of_the_users_files(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("loader_bench"), "OWN_S", 0.1)
    monkeypatch.setattr(module("user_data"), "EPOCH_S", 0.01)
    throughput, data = module("loader_bench").run(context(pictures))
    assert (throughput["id"], data["id"]) == ("C12.throughput.data", "C12.data")
    assert throughput["observed"]["workload"] == "data"
    assert throughput["observed"]["recommended"]["num_workers"] >= 0
    controls = {control["name"]: control["held"] for control in throughput["controls"]}
    assert controls["no_gain_recommends_no_workers"]
    assert "twice_the_work_is_seen" in controls  # in a tenth of a second, it holds if nothing else runs here
    assert "samples/s from your files" in ruled(throughput).message or ruled(throughput).reason_code


def test_a_dataset_gets_the_folder_and_is_loaded(pictures: Path, written: Any) -> None:
    name = written(
        """
        import os, torch
        class Images(torch.utils.data.Dataset):
            def __init__(self, folder):
                self.names = os.listdir(folder + "/class")
            def __len__(self):
                return len(self.names)
            def __getitem__(self, index):
                return torch.zeros(3), index
        make = Images
        """
    )
    own, item = tried(context(pictures, name))
    assert own.usable
    assert (item["observed"]["dataset"], item["observed"]["samples"]) == ("ours:make", 6)
    assert ruled(item).message.startswith("the Dataset ours:make: 6 samples of 6 files")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def make():\n    raise LookupError('secret')\n", "LookupError"),
        ("def make():\n    raise SystemExit(3)\n", "SystemExit"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("made = 1\n", "AttributeError"),
        ("def make():\n    return iter(())\n", "TypeError"),
        ("def make(folder):\n    return []\n", "TypeError"),
    ],
)
def test_a_dataset_that_cannot_be_made_is_named(
    written: Any, source: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    own, item = tried(context(None, written(source)))
    assert not own.usable
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.WARN, "DATA_FAILED")
    assert ruled(item).message == f"the Dataset ours:make could not be opened: {kind}"
    assert f"user data: ours:make: {kind}" in capfd.readouterr().err
    assert "secret" not in json.dumps(item)


def test_a_dataset_that_hangs_is_interrupted_and_the_rest_goes_on(written: Any) -> None:
    ctx = context(None, written("import time\ndef make():\n    time.sleep(60)\n"), limit_s=0.2)
    own, item = tried(ctx)
    assert (own.usable, item["observed"]["error"]) == (False, "TimeLimit")
    assert ruled(item).reason_code == "DATA_FAILED"


def test_a_sample_that_raises_in_a_worker_is_counted_and_another_stands_in(written: Any) -> None:
    source = """
        import torch
        class Some:
            def __len__(self):
                return 4
            def __getitem__(self, index):
                if index == 2 and torch.utils.data.get_worker_info() is not None:
                    raise OSError("secret")
                return torch.full((2,), float(index))
        make = Some
    """
    own = module("user_data").Own(context(None, written(source)))
    epoch = own.work()[2](32)
    loader = module("loaders").loader(torch, epoch, num_workers=1, batch_size=4, **epoch.options)
    assert sum(len(batch) for batch in loader) == 32
    item = own.observation()
    assert (item["observed"]["broken"], item["observed"]["tried"]) == (1, 4)
    assert ruled(item).reason_code == "SAMPLES_BROKEN"


def test_a_loader_that_fails_in_every_setting_is_named(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("loader_bench"), "OWN_S", 0.1)
    source = "class Some(list):\n    pass\ndef make():\n    return Some([object(), object()])\n"
    throughput, data = module("loader_bench").run(context(None, written(source)))
    assert (throughput["status"], throughput["reason"]["code"]) == ("skip", "LOADER_FAILED")
    assert "TypeError" in throughput["reason"]["message"]
    assert data["id"] == "C12.data"


def test_the_users_collate_fn_is_used(written: Any) -> None:
    source = """
        class Some(list):
            def collate_fn(self, samples):
                return {"n": len(samples)}
        def make():
            return Some([object()] * 3)
    """
    own = module("user_data").Own(context(None, written(source)))
    epoch = own.work()[2](4)
    assert list(module("loaders").loader(torch, epoch, num_workers=0, batch_size=2, **epoch.options)) == [{"n": 2}] * 2


def test_epochs_read_other_samples(pictures: Path) -> None:
    own = module("user_data").Own(context(pictures))
    epoch = own.work()[2](6)
    assert len({tuple(epoch) for _ in range(5)}) > 1


def test_storage_of_the_users_files(pictures: Path) -> None:
    (pictures / "empty").write_bytes(b"")
    (pictures / "shard.tar").write_bytes(bytes(9 << 20))
    items = {item["id"]: item for item in observer("c22_storage").run(context(pictures))}
    assert set(items) == {"C22.data_read", "C22.data_random", "C22.scratch_write"}
    read = items["C22.data_read"]["observed"]
    assert read["exact"] is True
    assert read["bytes"] > 9 << 20
    assert read["unreadable_files"] == 0
    assert "secret" not in json.dumps(items)


def test_storage_without_a_file_is_skipped_and_the_scratch_folder_is_measured(tmp_path: Path) -> None:
    items = {item["id"]: item for item in observer("c22_storage").run(context(tmp_path))}
    assert items["C22.data_read"]["reason"]["code"] == items["C22.data_random"]["reason"]["code"] == "NO_FILE"
    assert "C22.scratch_write" in items


def test_a_file_that_cannot_be_read_is_counted_and_the_others_are_read(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = observer("c22_storage")
    opened = check.Direct

    def refused(path: Path) -> Any:
        if path.name == "secret-3.png":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(check, "Direct", refused)
    ctx = context(pictures)
    item = check.Sequential(ctx, list(module("user_data").files(ctx)[0])).observation("C22.data_read")
    assert (item["observed"]["unreadable_files"], item["observed"]["reads"]) == (1, 5)
    finding = ruled(item)
    assert (finding.verdict, finding.reason_code) == (Verdict.WARN, "DATA_UNREADABLE")
