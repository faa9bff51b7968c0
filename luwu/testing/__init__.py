"""Clusters for tests, and the pytest plugin that brings them.

plugin.py      the pytest plugin: options and fixtures
fixtures.py    what the fixtures return
factories.py   fixtures of one's own
settings.py    settings, from an argument, the command line or the ini file
cluster.py     a whole cluster of processes
running.py     a function in new worker processes
worker.py      the program of such a process
calls.py       a function named, never sent as an object
values.py      arguments and results in files
namespaces.py  where a test's workers join
record.py      what one test started and left behind
leftovers.py   how leftovers are found (I8)
leash.py       `luwu` that ends when its standard input does
"""
