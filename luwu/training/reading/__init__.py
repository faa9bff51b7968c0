"""Models that read the weights of a job in training (`luwu.read_from`)."""
