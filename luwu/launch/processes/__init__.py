"""Processes of a run: started, watched, stopped; their directory and what they print."""
