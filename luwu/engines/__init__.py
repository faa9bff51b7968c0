"""Other programs that place our processes on hosts: Ray."""
