"""What of the architecture can be counted, counted: `python -m tests.house`.

    __main__.py   prints every count and its findings; exit code 1 if there is any
    amounts.py    lines, words, rows, keys, messages, dependencies; their bounds are in bounds.toml
    source.py     the modules of the product, their syntax trees, names and imports
    structure.py  circles of imports, classes of cores that inherit, names that hide others
    sizes.py      long files, long functions, wide signatures
    labels.py     numbered rules: defined once, cited as defined
    texts.py      maps in docstrings of packages, names that the architecture page cites

Nothing is imported of what is checked: everything is read from syntax trees and text.
"""
