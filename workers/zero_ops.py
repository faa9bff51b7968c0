"""Compile what DeepSpeed's arms load, in one process, before any worker starts.

    TORCH_EXTENSIONS_DIR=DIR python -m workers.zero_ops zero3-offload|zero-infinity

DeepSpeed compiles at first use. A rank that is killed meanwhile leaves a file `lock` in DIR, for
which every later run waits without a word. So this process alone compiles into DIR, and a DIR
belongs to one run (`luwu/compare/zero.py`).
"""

from __future__ import annotations

import os
import sys

from luwu.base.errors import ConfigError

BUILDERS = {
    "zero3-offload": ("CPUAdamBuilder", "PinMemoryBuilder"),
    "zero-infinity": ("CPUAdamBuilder", "PinMemoryBuilder", "AsyncIOBuilder"),
}
"""By arm: the builders of the libraries that its ranks load."""
CPU_BUILDERS = ("ShareMemCommBuilder",)
"""Those of the CPU accelerator's process group."""


def build(arm: str) -> None:
    """Compile and load each library of the arm. Raises ConfigError where that cannot be done."""
    import torch

    os.environ["DS_ACCELERATOR"] = "cuda" if torch.cuda.is_available() else "cpu"
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    names = BUILDERS[arm]
    if accelerator.device_name() == "cpu":
        names += CPU_BUILDERS
    for name in names:
        builder = accelerator.create_op_builder(name)
        print(f"deepspeed {builder.name}", flush=True)
        if name == "AsyncIOBuilder" and not builder.is_compatible(False):
            raise ConfigError(
                "arm zero-infinity reads and writes through libaio, and a program that calls it "
                "could not be compiled here; install its headers (libaio-dev on Debian, "
                "libaio-devel on Fedora), or take zero3-offload"
            )
        try:
            builder.load(False)
        except (RuntimeError, OSError) as exc:
            lines = str(exc).splitlines()
            said = next((line for line in lines if "error:" in line), lines[0])
            raise ConfigError(
                f"arm {arm}: DeepSpeed's library {builder.name} cannot be compiled or loaded "
                f"({said.strip():.300}); it needs g++, Python's headers and ninja"
            ) from exc


if __name__ == "__main__":
    build(sys.argv[1])
