"""Tables, pages and timelines of finished runs.

table.py        a comparison as plain text
page.py         a comparison as one HTML file
chart.py        charts as SVG
timeline.py     a run as a timeline for Perfetto
event_files.py  the events of a run, read from disk one at a time
aligned.py      spans of several processes on one clock
busy.py         busy time of each engine, and the share hidden behind compute
overlap.py      the share of updates hidden behind the backward
host_links.py   bytes on the links between hosts
prometheus.py   counters for Prometheus
"""
