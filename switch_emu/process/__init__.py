"""The parts that switch and node share as processes: loop, admission, payloads, counters."""
