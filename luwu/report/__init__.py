"""Pictures, tables and pages of runs: documents and events in, text out.

palette.py       colours, the same for a system or an engine everywhere
chart.py         curves, bars and the strip of all steps, as SVG
intervals.py     stretches of time: what spans cover, and what others cover of it
lanes.py         one step: a row per engine, and what limits it
lanes_chart.py   its picture
event_files.py   the events of a run, read from disk one at a time; units and their extents
recent.py        the same, followed as they grow; the last steps as lanes
verdict.py       a run in three sentences
page.py          its page, as one HTML file
table.py         a comparison as plain text
timeline.py      a run as a timeline for Perfetto
aligned.py       spans of several processes on one clock
"""
