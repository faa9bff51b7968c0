"""The `luwu` command: one file a verb."""
