"""What every other package may use: errors, limits, clock, quantities, events, failpoints."""
