"""Ways between processes: transports, links, keys."""
