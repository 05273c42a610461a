"""What the checks of the standard and deep tiers compute without torch."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

c11: Any = import_module("envkit.smoke.checks.c11_overlap")
c15: Any = import_module("envkit.smoke.checks.c15_amp_speed")
c20: Any = import_module("envkit.smoke.checks.c20_collectives")
c22: Any = import_module("envkit.smoke.checks.c22_storage")
mini_train: Any = import_module("envkit.smoke.mini_train")
compiling: Any = import_module("envkit.smoke.compiling")
registry: Any = import_module("envkit.smoke.registry")

MOUNTS = """overlay / overlay rw 0 0
tmpfs /tmp tmpfs rw,nosuid 0 0
/dev/sdb1 /tmp/my\\040data ext4 rw 0 0
/dev/sda1 /opt xfs rw 0 0
broken
"""


@pytest.mark.parametrize(("both", "share"), [(12.0, 1.0), (22.0, 0.0), (17.0, 0.5), (24.0, -0.2)])
def test_overlap_is_the_share_of_the_shorter_that_disappears(both: float, share: float) -> None:
    assert c11.efficiency(10.0, 12.0, both) == pytest.approx(share)


@given(st.floats(0.01, 1e3), st.floats(0.01, 1e3), st.floats(0, 1))
def test_overlap_gives_back_the_share_it_was_made_from(copy: float, compute: float, share: float) -> None:
    both = copy + compute - share * min(copy, compute)
    assert c11.efficiency(copy, compute, both) == pytest.approx(share, abs=1e-6)


def test_products_grow_with_the_device() -> None:
    assert [c15.gemm_size(capability) for capability in (None, (7, 5), (8, 9), (9, 0), (12, 0))] == [
        768,
        4096,
        4096,
        8192,
        8192,
    ]


def test_rates_count_two_operations_per_multiplication() -> None:
    assert c15.tflops(1000, 2.0) == pytest.approx(1.0)
    assert c15.tflops(1000, 0.0) is None


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_of_an_all_reduce(ranks: int, factor: float) -> None:
    assert c20.bus_bandwidth(100.0, ranks) == pytest.approx(100 * factor)


def test_one_broken_process_breaks_the_group() -> None:
    good = {"outcome": "answered"}
    assert c20.worst([good, good]) == "answered"
    assert c20.worst([good, {"outcome": "timeout"}, {"outcome": "failed"}]) == "timeout"


def test_processes_are_told_to_meet_on_loopback_unless_the_image_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    found = c20.environment()
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("lo", "eth7")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/env/lib", "xfs"),
        ("/tmp/x", "tmpfs"),
        ("/tmp/my data/x", "ext4"),
        ("/optional", "overlay"),
        ("/opt", "xfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_deepest_mount(path: str, kind: str) -> None:
    assert c22.filesystem(path, MOUNTS) == kind
    assert c22.filesystem(path, "") is None


def test_the_largest_file_is_read_if_it_is_large_enough(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(bytes(10))
    (tmp_path / "large").write_bytes(bytes(20))
    (tmp_path / "folder").mkdir()
    assert c22.largest_file(tmp_path, least=15).name == "large"
    assert c22.largest_file(tmp_path, least=30) is None
    assert c22.largest_file(tmp_path / "absent") is None


@pytest.mark.parametrize(("full", "without", "share"), [(10, 10, 0), (10, 5, 0.5), (5, 10, 0), (0, 1, 0), (10, 0, 1)])
def test_the_starved_share_is_what_the_loader_costs(full: float, without: float, share: float) -> None:
    assert mini_train.starved_share(full, without) == share


def test_a_starving_loader_waits_and_an_absent_one_does_not() -> None:
    begin = mini_train.time.perf_counter()
    source = mini_train.same("batch", 0.01)
    assert [next(source), next(source)] == ["batch", "batch"]
    assert mini_train.time.perf_counter() - begin >= 0.02


def test_only_kernels_count(tmp_path: Path) -> None:
    folder = tmp_path / "ab"
    folder.mkdir()
    for name in ("x.cpp", "y.cpp", "z.so", "lock.txt", "w.py"):
        (folder / name).touch()
    assert compiling.kernels(tmp_path) == {".cpp": 2, ".so": 1}
    assert compiling.kernels(tmp_path / "absent") == {}


@pytest.mark.parametrize(("tier", "seconds"), [("quick", 60), ("standard", 180), ("deep", 720)])
def test_every_tier_fits_its_time_on_a_cpu(tier: str, seconds: float) -> None:
    chosen = registry.select(registry.load(), tier)
    spent = [registry.budget(item, tier) for item in chosen if item.NEEDS != "cuda" and item.ID != "C04"]
    assert sum(spent) <= seconds


def test_a_check_may_take_longer_in_a_deeper_tier() -> None:
    (loader,) = registry.select(registry.load(), "quick", ["C12"])
    assert registry.budget(loader, "quick") < registry.budget(loader, "standard")
