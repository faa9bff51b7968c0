"""Everything that knows torch modules."""
