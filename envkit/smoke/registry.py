"""The checks of this payload, from the catalog that was packed into it."""

import importlib
import json
import pkgutil

TIERS = ("quick", "standard", "deep")
CATALOG = "catalog.json"


class Check:
    """One check: what the catalog says of it, and the ``run`` of its ``observe`` module."""

    def __init__(self, row, run):
        self.id = row["id"]
        self.title = row["title"]
        self.tier = row["tier"]
        self.needs = row["needs"]  # "host", "torch" or "cuda"
        self.budget_s = row["budget_s"]
        self.budgets_s = row["budgets_s"]
        self.run = run

    def budget(self, tier):
        """Return the seconds the check is meant to take in ``tier``: one that does more in a deeper tier says so."""
        return self.budgets_s.get(tier, self.budget_s)


def packed():
    """Return the rows of the catalog that is packed beside the checks, in the order the checks run."""
    return json.loads(pkgutil.get_data("envkit.checks", CATALOG).decode("utf-8"))


def load(rows):
    """Return the checks of ``rows`` with their code, in the same order."""
    return [Check(row, _code(row["folder"]).run) for row in rows]


def _code(folder):
    """Return the module of a check: a file in the payload's archive, ``observe.py`` of its folder in envkit itself."""
    module = importlib.import_module("envkit.checks." + folder)
    return module if hasattr(module, "run") else importlib.import_module(module.__name__ + ".observe")


def select(checks, tier, only=()):
    """Return the checks of ``tier`` and every cheaper one, narrowed to the ids in ``only`` where given."""
    allowed = TIERS[: TIERS.index(tier) + 1]
    unknown = sorted(set(only) - {check.id for check in checks})
    if unknown:
        raise ValueError("no such check: " + ", ".join(unknown))
    return [check for check in checks if (check.id in only if only else check.tier in allowed)]
