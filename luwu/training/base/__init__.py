"""Parts that every room of training may use.

interface.py   the NIC: what training needs of the layer below
progress.py    the step that is computed, and what of it has been done
names.py       names of modules, parameters and dtypes
autograd.py    whether backward or a transform of torch.func runs in this thread
uncompiled.py  functions that torch's compiler leaves alone
"""
