"""The optimizer node: owns pages, updates them, publishes weights.

core/           the pure state machine
shell.py        the process part: transport, core, pipeline and store together
spec.py         what a node is started with
process.py      starts a node from its specification
storage.py      opens and makes what the specification asks for: store, spill file, places
plan.py         the memory plan: what `--memory-budget` is spent on
pipeline.py     threads that read, update, write and publish pages
kernels/        the arithmetic of an update
update.py       the factor by which a step's gradient is clipped
runs.py         the parts of a page that an update changes
scratch.py      working memory of a pipeline thread
statistics.py   norms per parameter, made during updates
block_norms.py  norms other than the 2-norm
outgoing.py     memory that new weights are written to for those who pull them
places.py       weights at fixed places in shared memory
pages.py        the store's configuration and views of a record
extent_pages.py  the pages of an extent, and their parts of what travels
readers.py      versions held for readers, and the thread that reads them
"""
