"""`import torch` without looking for garbage."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
if {with_thread}:
    threading.Thread(target=end.wait).start()
print(import_for_children() is None)
end.set()
"""


@pytest.mark.parametrize("with_thread", [True, False])
def test_not_shared_with_children_that_would_lack_a_thread(*, with_thread: bool) -> None:
    """Goal: a lock that a thread holds as the process forks would be held for good."""
    code = NOT_SHARED.format(with_thread=with_thread)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{with_thread}\n"), done.stderr
