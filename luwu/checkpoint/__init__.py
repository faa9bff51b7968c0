"""A job's state as files that others read: safetensors and one JSON document; and back.

    source.py        where a state is read from: a store at rest, or a job that is running
    read_ahead.py    fields of chunks, read ahead in a bounded number of buffers
    document.py      luwu.json: what the files do not contain
    export_state.py  state -> files
    import_state.py  files -> state
    origin.py        the files of an export, verified as they are read
    snapshot.py      a copy of a state that is itself a state
    refill.py        the directory of a lost node, from its replicas
    copying.py       a new store that begins with a version of another

It knows the store and the layout, and neither torch modules nor training.
"""
