"""Many images and many machines: cells of a matrix, tasks, executors and what became of each."""

REPORT_SCHEMA = "envkit.fleet/1"
