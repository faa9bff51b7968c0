"""A role as a process: one job from a configuration, or several jobs in one process."""
