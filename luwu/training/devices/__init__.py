"""Memory of the host, which the network reads and writes, and memory of the device.

gradients.py        which parts of a unit's gradients make up each extent, and the copy
device.py           `CpuDevice`, `CudaDevice`, which packs; `write_unit` writes gradients to cells
weights.py          the storage of a unit's weights on a CPU (`device_weights.py`: on a GPU)
storages.py         which storages hold weights
streams.py, pinning.py, ring.py    streams and events, registered memory, buffers used again
"""
