"""What is seen of a run: timeline, lanes, status, report."""
