"""From settings to an executor: part of the composition root, for `build` alone."""
