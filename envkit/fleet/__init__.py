"""Many images on many machines: the cells of a matrix, their tasks, the executors and the outcomes."""

REPORT_SCHEMA = "envkit.fleet/1"
