"""Starts the processes of a run and watches over them."""
