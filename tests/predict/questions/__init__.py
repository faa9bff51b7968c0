"""What the performance model is asked: questions, plans, and how far off it is."""
