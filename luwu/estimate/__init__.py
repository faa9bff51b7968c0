"""What a job needs and how long a step takes on this machine, before it is run."""
