"""For every test here: ranks are threads, and torch has one of its own."""

from tests.helpers.training_harness import one_thread  # noqa: F401
