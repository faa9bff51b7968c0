"""The connection file or URL by which a process finds and joins its job; and that job in a file."""
