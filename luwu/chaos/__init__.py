"""`luwu chaos`: a job, faults, and whether its weights are what they should be."""
