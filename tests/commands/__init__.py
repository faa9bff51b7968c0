"""The command line: keys, messages, documents, estimates."""
