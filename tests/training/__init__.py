"""Models, units and steps of a script."""
