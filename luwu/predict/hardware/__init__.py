"""The catalogue of machines, models and software.

catalogue.py  all that is known, read from files, each number with its source
hardware.py   devices, networks, drives, processors, switches
curves.py     measured rates by size
hosts.py      processors and drives of hosts that take part in training
model.py      a transformer: parameters and operations
model_config.py  the config.json of a model of Hugging Face
software.py   what a framework does, and what was fitted
listing.py    names with their main numbers and sources, as a list
units.py      numbers with units, of files and of people, in SI
keys.py       keys of a question, and what each contains
"""
