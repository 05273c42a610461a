"""The judges, one file per check, found by the check id before the dot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.verify.rules import (
    c00_container,
    c01_versions,
    c02_libraries,
    c03_arch,
    c04_kernel,
    c05_gemm,
    c06_conv,
    c07_repeat,
    c08_cpus,
    c09_pinned,
    c10_transfer,
    c11_overlap,
    c12_loader,
    c13_shm,
    c14_amp,
    c15_amp_speed,
    c16_amp_memory,
    c17_no_grad,
    c18_compile,
    c19_checkpoints,
    c20_collectives,
    c21_jpeg,
    c22_storage,
    c23_training,
    c24_sustained,
)

if TYPE_CHECKING:
    from envkit.verify.model import Judge

RULES: dict[str, Judge] = {
    "C00": c00_container.judge,
    "C01": c01_versions.judge,
    "C02": c02_libraries.judge,
    "C03": c03_arch.judge,
    "C04": c04_kernel.judge,
    "C05": c05_gemm.judge,
    "C06": c06_conv.judge,
    "C07": c07_repeat.judge,
    "C08": c08_cpus.judge,
    "C09": c09_pinned.judge,
    "C10": c10_transfer.judge,
    "C11": c11_overlap.judge,
    "C12": c12_loader.judge,
    "C13": c13_shm.judge,
    "C14": c14_amp.judge,
    "C15": c15_amp_speed.judge,
    "C16": c16_amp_memory.judge,
    "C17": c17_no_grad.judge,
    "C18": c18_compile.judge,
    "C19": c19_checkpoints.judge,
    "C20": c20_collectives.judge,
    "C21": c21_jpeg.judge,
    "C22": c22_storage.judge,
    "C23": c23_training.judge,
    "C24": c24_sustained.judge,
}
