"""How a process finds its job: the connection file or URL, and what is opened from it."""
