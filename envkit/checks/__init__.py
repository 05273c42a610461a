"""One folder per check. The folder is all it takes: no other module lists the checks.

    observe.py   runs inside the image: standard library, torch and `envkit.smoke` alone, Python 3.8 syntax.
                 `run(ctx)` returns observations and decides nothing
    judge.py     runs outside and is pure: `judge(case)` returns a finding
    show.py      what a report shows of the check: tables and figures. Checks without numbers have no such file
    check.yaml   id, title, tier, needs, what it verifies, what counts, time budget, thresholds with their sources

The empty `__init__.py` beside them makes the folder a package, as import contracts and zip files require.
"""
