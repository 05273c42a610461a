"""One file per check. Each has ID, TITLE, TIER, BUDGET_S, NEEDS and ``run(ctx) -> list`` of observations."""
