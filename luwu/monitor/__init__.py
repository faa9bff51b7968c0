"""What a run does and did, read from its directory: no process of the run is asked.

watch.py        the document of a run, made again as its files grow
prometheus.py   metrics for Prometheus
"""
