"""One target under atheris: `python -m tests.fuzz.one TARGET SECONDS`."""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["envkit"]):
    from tests.fuzz.targets import TARGETS, seeds

_HERE = Path(__file__).parent


def main() -> None:
    """Hand over to libFuzzer, which ends the process."""
    name, seconds = sys.argv[1:]
    kept = _HERE.parents[1] / ".fuzz" / name
    kept.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (kept / f"seed-{number}").write_bytes(seed)
    failures = _HERE / "failures" / f"{name}-"
    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=1024"]
    atheris.Setup(
        [sys.argv[0], *limits, "-print_final_stats=1", f"-artifact_prefix={failures}", str(kept)], TARGETS[name]
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
