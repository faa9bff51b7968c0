"""Predictions of configurations whose published results this project has not looked at.

__main__.py   `python -m benchmarks.blind`, `--set 2` for the second set
document.py   a row for each prediction: the configuration, the quantity and its unit, the number,
              and what had to be assumed because the configuration does not say it

Those that were predicted so far are in `luwu/predict/check/blind`, with what was published since.
"""
