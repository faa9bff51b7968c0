"""Random lives of a store against a model of twenty lines: a dictionary a version."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from luwu.base.errors import StateError
from switch_emu.store import DecidedStep, FilePageStore, PageStore, TieredPageStore
from tests.suites.store_suite import contents, read, record, small_config

PAGES = range(7)


class StoreMachine(RuleBasedStateMachine):
    """Any order of calls that the interface allows, and reopening at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="luwu-store-"))
        self.store: PageStore = self.wrap(
            FilePageStore.create(self.folder / "store", small_config(), durability="process")
        )
        self.version = -1
        self.decided: dict[int, bytes] = {}
        self.written: dict[int, bytes] = {}
        self.prepared: tuple[int, bool] | None = None
        """Attempt of the prepared step, and whether it is applied."""
        self.attempt, self.aborted, self.generation, self.salt = 0, -1, 1, 0

    def wrap(self, store: FilePageStore) -> PageStore:
        """Some pages in RAM, the others not."""
        return TieredPageStore(store, 60_000)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @precondition(lambda self: self.prepared is None and self.attempt > self.aborted)
    @rule(pages=st.sets(st.sampled_from(PAGES), min_size=1))
    def write(self, pages: set[int]) -> None:
        """Pages of the next version; sometimes a second time."""
        for page in pages:
            self.salt += 1
            data = record(self.store, page, self.version + 1, self.salt)
            self.store.write(page, self.version + 1, self.attempt, data)
            self.written[page] = data

    @precondition(lambda self: self.version == -1 and self.prepared is None)
    @precondition(lambda self: self.attempt > self.aborted)
    @rule()
    def write_all(self) -> None:
        """So that histories get beyond the initial weights."""
        self.write(set(PAGES))

    @precondition(lambda self: self.prepared is None and self.attempt > self.aborted)
    @precondition(lambda self: self.version >= 0 or len(self.written) == len(PAGES))
    @rule(applied=st.booleans())
    def prepare(self, applied: bool) -> None:
        """Make the step ready."""
        applied = applied or self.version < 0
        self.store.prepare(
            DecidedStep(version=self.version + 1, attempt=self.attempt, applied=applied)
        )
        self.prepared = (self.attempt, applied)

    @precondition(lambda self: self.prepared is not None)
    @rule()
    def decide(self) -> None:
        """Make the prepared version the decided one."""
        assert self.prepared is not None
        attempt, applied = self.prepared
        self.store.decide(self.version + 1, attempt)
        self.version += 1
        if applied:
            self.decided |= self.written
        self.written, self.prepared = {}, None

    @rule()
    def abort(self) -> None:
        """Give the attempt up and start the next."""
        self.store.record_attempt(self.attempt + 1)
        self.store.abort(self.attempt)
        self.aborted = self.attempt
        self.attempt += 1
        self.written, self.prepared = {}, None

    @rule()
    def reopen(self) -> None:
        """Like a restart: what is prepared stays, what is only written is gone."""
        self.store.close()
        self.store = self.wrap(FilePageStore.open(self.folder / "store", durability="process"))
        self.generation += 1
        self.aborted = -1
        if self.prepared is None:
            self.written = {}

    @invariant()
    def same_as_the_model(self) -> None:
        """P1 to P5 on everything that can be seen."""
        store = self.store
        assert (store.generation, store.attempt) == (self.generation, self.attempt)
        assert (store.prepared is not None) == (self.prepared is not None)
        assert (-1 if store.decided is None else store.decided.version) == self.version
        if self.version >= 0:
            assert contents(store, self.version) == [self.decided[page] for page in PAGES]
        applied = self.prepared is None or self.prepared[1]
        for page, data in self.written.items():
            expected = data if applied else self.decided[page]
            assert read(store, page, self.version + 1) == expected
        for page in PAGES:
            if page not in self.written and self.prepared is None:
                with pytest.raises(StateError):
                    read(store, page, self.version + 1)


StoreMachine.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestStoreAgainstModel = StoreMachine.TestCase
