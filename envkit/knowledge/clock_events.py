"""NVML's clock event reasons that mean heat or too little power, not the power limit that every full load reaches.

Source: nvml.h, nvmlClocksEventReasons.
"""

SLOWING = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
