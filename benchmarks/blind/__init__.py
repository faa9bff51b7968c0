"""Predictions of configurations whose published results this project has not looked at.

__main__.py   `python -m benchmarks.blind`
document.py   a row for each prediction: the configuration, the quantity and its unit, the number,
              and what had to be assumed because the configuration does not say it
training.py   jobs of `training.toml`, and memory
inference.py  answers on devices and on sockets
testbed.py    the testbed of arXiv 2409.00918, and what follows from it
networks.py   rails, rates, devices
"""
