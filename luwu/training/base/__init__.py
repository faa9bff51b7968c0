"""Parts that every room of training may use.

progress.py     the step that is computed, what of it has been done
names.py        names of modules, parameters and dtypes
torch_state.py  whether backward, a transform or the compiler of torch is at work
"""
