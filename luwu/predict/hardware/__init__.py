"""The catalogue of machines, models and software.

catalogue.py  all that is known, read from files, each number with its source; and as a list
hardware.py   devices, networks, drives, processors, hosts; measured rates by size
model.py      a transformer: parameters and operations; the config.json of one of Hugging Face
software.py   what a framework does, and what was fitted
values.py     values of keys, of files and of people: numbers with units, names, counts
"""
