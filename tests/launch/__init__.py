"""How processes of a run start, are watched, and end."""
