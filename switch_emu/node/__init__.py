"""The optimizer node: owns pages, updates them, publishes weights.

core/           the pure state machine
shell.py        the process part: transport, core, pipeline and store together
spec.py         the specification of a node process
process.py      starts a node from its specification
placement.py    where the state lies: in RAM, in shared memory, on disk
storage.py      opens and makes the storage of the specification: store, spill file, places
plan.py         the memory plan: the uses of `--memory-budget`
pipeline.py     threads that read, update, write and publish pages
kernels/        the arithmetic of an update
page_updates.py how pages are updated, and once more from the log of sums
extent_pages.py the pages of an extent, in groups that are worked on at once
sheets.py       a matrix over several pages, in one piece while it is updated
scratch.py      working memory of a pipeline thread
pages.py        the store's configuration and views of a record
readers.py      versions held for readers, and reads of their fields
"""
