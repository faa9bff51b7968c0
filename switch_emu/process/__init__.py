"""What switch and node have in common as processes: the loop, admission, payloads, counters."""
