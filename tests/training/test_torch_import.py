"""`import torch` without looking for garbage."""

from __future__ import annotations

import os
import subprocess
import sys

from luwu.base.torch_import import PRELOAD

IMPORTS = """
import gc, sys
import luwu
assert "torch" not in sys.modules
from luwu.base.torch_import import expect_torch
path, sys.path = sys.path, []
expect_torch()
try:
    import torch
except ModuleNotFoundError as error:
    assert error.name == "torch", error
sys.path = path
expect_torch()
import torch
assert gc.isenabled()
assert gc.get_freeze_count() > 100_000
assert not [each for each in sys.meta_path if type(each).__module__ == expect_torch.__module__]
loader = torch.__spec__.loader
assert torch.__loader__ is loader and type(loader).__module__ == "_frozen_importlib_external"
expect_torch()
assert not [each for each in sys.meta_path if type(each).__module__ == expect_torch.__module__]
print(torch.ones(2).sum().item())
"""


def test_torch_is_what_it_would_be() -> None:
    """Goal: Python's own import, its errors too; afterwards garbage is looked for as before;
    `import luwu` leaves torch alone."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr


NOT_SHARED = """
import sys, threading
from luwu.base.torch_import import import_for_children
end = threading.Event()
threading.Thread(target=end.wait).start()
print(import_for_children() is None)
end.set()
"""


def test_a_job_without_torch_loads_none() -> None:
    """Goal: with LUWU_PRELOAD=0 processes are forked all the same."""
    code = "from luwu.base.torch_import import *; print(import_for_children())"
    environ = {**os.environ, PRELOAD: "0"}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environ) == b"ImportedTorch(modules={})\n"


def test_not_shared_with_children_that_would_lack_a_thread() -> None:
    """Goal: a lock that a thread holds as the process forks would be held for good."""
    command = [sys.executable, "-W", "ignore", "-c", NOT_SHARED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
