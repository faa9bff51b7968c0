"""Memory of the host, which the network reads and writes, and memory of the device.

gradients.py        which parts of a unit's gradients make up each extent, and the copy
device.py           `CpuDevice`, `CudaDevice`, which packs; `write_unit` writes gradients to cells
weights.py          the storage of a unit's weights, on a CPU or a GPU
gpu.py              streams and events of a GPU, registered memory, buffers used again
"""
