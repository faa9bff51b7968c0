"""Directories of safetensors files, slice by slice, in the layout of Hugging Face.

header.py     the format of one file: names, dtypes, shapes, places
directory.py  reading: which file has which tensor, and slices of it, widened to float32
writer.py     writing: which tensor goes to which file, and its bytes in order

The safetensors library writes tensors that are in memory as a whole; a state larger than memory
needs a writer of its own. Readers take files from anywhere: all is checked before anything is read.
"""
