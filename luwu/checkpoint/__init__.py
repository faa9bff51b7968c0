"""A job's state as files that others read: safetensors and one JSON document; and back.

source.py        where a state is read from: a store at rest, or whatever has these methods
pieces.py        which parts of chunks make up a parameter, and the other way round
read_ahead.py    fields of chunks, read ahead in a bounded number of buffers
names.py         what torch calls the optimizer's state and hyper-parameters
document.py      luwu.json: what the files do not say
export_state.py  state -> files          import_state.py  files -> state

It knows the store and the layout, and neither torch modules nor those who train.
"""
