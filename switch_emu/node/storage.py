"""The storage of an optimizer node, opened or made by its specification.

store         pages; opened if the directory has a state, else made by the workers' description
claim         holds the directory until the store is made
spill         gradients that do not fit in RAM
attachments   of workers to versions
places        weights that workers read in place, in shared memory of the transport; of a state in
              RAM of one side these are its masters, if both are float32
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from luwu.aggregate import Aggregator, make_aggregator
from luwu.base.directories import check_space
from luwu.base.errors import ConfigError, LuwuError, StoreFullError
from luwu.layout import Extent, Share
from luwu.wire.description import Description, parse_description
from switch_emu.node.kernels.make import check_known
from switch_emu.node.page_updates import redo_of
from switch_emu.node.pages import node_layout_hash
from switch_emu.node.placement import Placement
from switch_emu.node.plan import NodePlan
from switch_emu.node.spec import NodeSpec
from switch_emu.process.places import WeightsPlaces
from switch_emu.store import (
    DecidedStep,
    FilePageStore,
    MemoryPageStore,
    PageStore,
    StoreConfig,
    TieredPageStore,
)
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.directory import CONFIG_NAME, Claim
from switch_emu.store.logged import LoggedPageStore
from switch_emu.store.spill import SpillFile


class NodeStorage:
    """Opens and makes the storage of a node; callers close it."""

    def __init__(
        self, spec: NodeSpec, plan: NodePlan, reserve: Callable[[int], memoryview]
    ) -> None:  # fmt: skip
        """`reserve`: reserves shared memory."""
        self._spec, self._plan, self._reserve = spec, plan, reserve
        self._placed: Placement | None = None
        self._places: WeightsPlaces | None = None
        self._claim = None if spec.state is None else Claim(spec.state, f"job {spec.job}")

    @property
    def where(self) -> str:
        """The location of the state, as text."""
        return "in RAM" if self._spec.state is None else f"in {self._spec.state}"

    def close(self) -> None:
        """Release a claim that was not used."""
        if self._claim is not None:
            self._claim.close()

    def open_store(self) -> PageStore | None:
        """Open the existing store; without one, claim its directory. Raises ConfigError."""
        spec = self._spec
        if spec.state is None or self._claim is None:
            return None
        if not (spec.state / CONFIG_NAME).exists():
            self._claim.take()
            return None
        store = FilePageStore.open(spec.state, durability=spec.durability)
        try:
            return self._in_front(store, self._check(store))
        except LuwuError:
            store.close()
            raise

    def _check(self, store: FilePageStore) -> Description:
        """The description of an open store. Raises ConfigError if it does not fit the job."""
        spec = self._spec
        if store.decided is not None and not spec.resume:
            version = store.decided.version
            raise ConfigError(
                f"{spec.state} holds the state of a job after {version} decided "
                f"{'step' if version == 1 else 'steps'}; "
                "continue it with --resume, or name another directory with --state",
                code="E203",
            )
        if store.config.chunk_bytes != spec.chunk_bytes:
            found_kib, asked_kib = store.config.chunk_bytes // 1024, spec.chunk_bytes // 1024
            raise ConfigError(
                f"{spec.state} was made with chunks of {found_kib}KiB, asked "
                f"for {asked_kib}KiB; use --chunk {found_kib}KiB",
                code="E203",
            )
        description = parse_description(store.config.description, spec.extent_chunks)
        count = description.layout.optimizer_nodes
        ours = node_layout_hash(description, spec.number, spec.replicas)
        is_ours = store.config.layout_hash == ours
        if count != spec.optimizer_nodes or not is_ours:
            whose = "another" if count == spec.optimizer_nodes else f"one of {count}"
            raise ConfigError(
                f"{spec.state} belongs to {whose} "
                f"optimizer node{'s'[: count != spec.optimizer_nodes]}, this is node {spec.number} "
                f"of {spec.optimizer_nodes} with {spec.replicas} of each page; give the --state it "
                f"was made with, --optimizer-nodes {count}, and the --replicas that it has (luwu "
                "refill STATE --replicas R makes it one with R)",
                code="E203",
            )
        return description

    def make_store(self, description: Description) -> PageStore:
        """Make the store of a new job. Raises ConfigError, StateError."""
        spec = self._spec
        if description.layout.optimizer_nodes != spec.optimizer_nodes:
            raise ConfigError(
                f"optimizer_nodes: the workers have {description.layout.optimizer_nodes}, there "
                f"are {spec.optimizer_nodes}; start both with the same --optimizer-nodes"
            )
        placement = self._placement(description)
        config = placement.config
        # Reject unknown aggregators and optimizers before there are pages.
        make_aggregator(description.aggregate, spec.world_size)
        check_known(description.optimizer, description.state_fields)
        if spec.state is None:
            placement.check_fits_in_ram()
            return self._in_ram(config, placement)
        if placement.log is None:  # these raise while there is no directory
            _ = placement.bytes_for_pages
        else:
            with _naming_flag():
                check_space(spec.state, placement.disk_bytes)
        store = FilePageStore.create(
            spec.state, config, durability=spec.durability, claim=self._claim
        )
        try:
            return self._in_front(store, description)
        except LuwuError:
            store.close()
            raise

    def make_spill(self, description: Description) -> SpillFile:
        """Make the file for gradients that do not fit in RAM."""
        spec, layout = self._spec, description.layout
        share = Share(layout, spec.number, spec.replicas)
        owned = [each for each in layout.extents if share.owns_extent(each.index)]
        aggregator = make_aggregator(description.aggregate, spec.world_size)
        return SpillFile(
            spec.state,
            place_bytes=max(_held_bytes(aggregator, extent) for extent in owned),
            places_count=sum(extent.trainable for extent in owned),
            buffers_count=self._plan.spill_bytes // spec.extent_bytes,
        )

    def make_attachments(self, decided: DecidedStep | None) -> AttachmentFiles:
        """Make the files of attachments; those of the decided version stay."""
        spec = self._spec
        return AttachmentFiles(spec.state, synced=spec.durability == "step", decided=decided)

    def make_places(self, description: Description) -> WeightsPlaces | None:
        """The places for weights that are read in place; None if copies are sent."""
        placement = self._placement(description)
        if placement.bytes_in_place and self._places is None:
            masters = {extent.index for extent in placement.extents_apart}
            memory = self._reserve(placement.bytes_in_place)
            self._places = WeightsPlaces(
                description.layout, memory, placement.places_count, masters
            )
        return self._places

    def _weights_apart(self, placement: Placement) -> dict[int, memoryview]:
        """Where the weights of pages lie apart: in their places."""
        description = placement.description
        places = self.make_places(description)
        found: dict[int, memoryview] = {}
        if places is None:
            return found
        for extent in placement.extents_apart:
            memory = places.memory(extent.index)
            for chunk in extent.chunks:
                found[chunk] = memory
                memory = memory[description.layout.chunks[chunk].wire_bytes :]
        return found

    def spare_bytes(self, description: Description) -> int:
        """Memory for sums beside the plan's."""
        return self._placement(description).spare_bytes

    def _placement(self, description: Description) -> Placement:
        """Where the state of a job lies; made once."""
        if self._placed is None or self._placed.description is not description:
            self._placed = Placement(spec=self._spec, plan=self._plan, description=description)
        return self._placed

    def _in_ram(
        self, config: StoreConfig, placement: Placement, pins: Path | None = None
    ) -> MemoryPageStore:
        return MemoryPageStore(
            config, in_place=placement.is_in_place,
            weights=self._weights_apart(placement), pins=pins,
            has_digests=self._spec.replicas > 1,
        )  # fmt: skip

    def _in_front(self, file: FilePageStore, description: Description) -> PageStore:
        """The store that the job works with: all pages in RAM and a log, or as many as fit.

        Raises StoreFullError if the log has no space, StateError if it cannot be redone.
        """
        spec, placement = self._spec, self._placement(description)
        file.redo = redo_of(file.config, spec.number)
        if spec.optimizer_nodes == 1 and file.prepared is not None:
            file.decide(file.prepared.version, file.prepared.attempt)
        if placement.log is None:
            file.keep_log(None)
            return TieredPageStore(
                file, placement.bytes_for_pages, disk_bytes_per_s=spec.disk_bytes_per_s
            )
        with _naming_flag():
            file.keep_log(placement.log)
        return LoggedPageStore(file, self._in_ram(file.config, placement, pins=file.path))


@contextmanager
def _naming_flag() -> Iterator[None]:
    """The error of a disk that is too small names a flag with which less is needed."""
    try:
        yield
    except StoreFullError as exc:
        text = f"{exc} A smaller --log-steps takes less for the log of sums, 1 none."
        raise StoreFullError(text) from exc


def _held_bytes(aggregator: Aggregator, extent: Extent) -> int:
    """The most that one payload of an extent's gradient takes while it waits."""
    elems = extent.elems
    return max(extent.sum_bytes, aggregator.encoded_bytes(elems), aggregator.sum_bytes(elems))
