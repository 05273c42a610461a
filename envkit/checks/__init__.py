"""One folder per check. A check exists because its folder does: nothing else lists it.

    observe.py   runs inside the image: standard library, torch and `envkit.smoke` alone, Python 3.8 syntax.
                 `run(ctx)` returns observations and decides nothing
    judge.py     runs outside and is pure: `judge(observation, spec, env)` returns a finding
    show.py      what a report shows of the check: tables and figures. A check without numbers has none
    check.yaml   id, title, tier, needs, what it verifies, what counts, time budget, thresholds with their sources

The empty `__init__.py` beside them makes the folder a package, which the import contracts and zip files ask for.
"""
