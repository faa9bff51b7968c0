"""What all cores share: messages, layout, protocol, sums."""
