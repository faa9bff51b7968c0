"""The connection file or URL by which a process finds its job, and joins it."""
