"""Stops the build when the environment does not hold what the plan promises. Runs in the build stage, without a GPU."""
# ruff: noqa: PTH123, INP001, UP032, PLC0415, T201 - runs inside images of any Python 3

import json
import sys


def main() -> int:
    """Compare Python and the torch family with the plan; returns the exit code."""
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    promised = plan["resolution"]
    found_python = "{}.{}".format(*sys.version_info[:2])
    if not plan["family"]:  # an image that only builds packages from source
        return 0 if found_python == promised["python"] else 1
    import torch

    wanted = {
        "python": promised["python"],
        "torch": promised["torch"] + (promised["local_version"] or ""),
        "torch.version.cuda": promised["cuda"],
    }
    found = {
        "python": found_python,
        "torch": torch.__version__ if promised["local_version"] else torch.__version__.split("+")[0],
        "torch.version.cuda": torch.version.cuda,
    }
    # A file of the Python index may leave its local version out of its own name.
    if found["torch"] == promised["torch"]:
        wanted["torch"] = promised["torch"]
    wrong = [name for name in wanted if wanted[name] != found[name]]
    for name in wrong:
        print("envkit: {} is {}, the plan says {}".format(name, found[name], wanted[name]), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
