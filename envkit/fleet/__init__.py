"""Many images and many machines: cells of a matrix, tasks, executors and what became of each."""
