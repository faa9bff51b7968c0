"""What every part stands on: clocks, units of values, files, configuration of machines."""
