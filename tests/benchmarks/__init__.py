"""The benchmarks run and check what they print; their numbers are not judged."""
