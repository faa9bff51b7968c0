"""Tables, pages and timelines made from a finished run."""
