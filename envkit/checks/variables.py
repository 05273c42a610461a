"""Environment variables that slow CUDA or torch down, or change their results without a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OFF = ("", "0", "false", "no")


@dataclass(frozen=True, slots=True)
class Hazard:
    """A variable and its effect."""

    name: str
    harmful: str | None  # the value with this effect; "*" for any; None for any that turns it on
    effect: str

    def applies(self, value: str) -> bool:
        """Return whether a value has the effect."""
        return value.lower() not in _OFF if self.harmful is None else self.harmful in ("*", value)


HAZARDS = (
    Hazard("NVIDIA_DISABLE_REQUIRE", None, "disables the driver check at startup"),
    Hazard("CUDA_LAUNCH_BLOCKING", None, "makes every kernel launch synchronous, which is for debugging"),
    Hazard("CUDA_CACHE_DISABLE", None, "makes each process compile kernels from PTX again"),
    # torch asks only whether it is set, so 0 disables the allocator, too.
    Hazard("PYTORCH_NO_CUDA_MEMORY_CACHING", "*", "disables torch's allocator"),
    # torch reads this and the two below as on only if they are exactly "1".
    Hazard("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "lowers the precision of fp32"),
    Hazard("TORCHDYNAMO_DISABLE", "1", "disables torch.compile"),
    Hazard("TORCH_COMPILE_DISABLE", "1", "disables torch.compile"),
    Hazard("NVIDIA_TF32_OVERRIDE", "0", "forbids TF32"),
)


def hazards(variables: Mapping[str, str]) -> list[Hazard]:
    """Return the hazards that apply to an environment."""
    return [one for one in HAZARDS if one.name in variables and one.applies(variables[one.name])]
