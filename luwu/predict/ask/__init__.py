"""From a question in a file to its answer, swept and compared."""
