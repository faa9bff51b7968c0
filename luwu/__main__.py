"""`python -m luwu` is the `luwu` command."""

from __future__ import annotations

import sys

from luwu.commands.main import main

sys.exit(main())
