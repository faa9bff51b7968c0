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
from dataclasses import replace

from luwu.aggregate import Aggregator, make_aggregator
from luwu.base.directories import check_space, memory_kind
from luwu.base.errors import ConfigError, LuwuError, StoreFullError
from luwu.base.quantities import format_bytes
from luwu.layout import Extent, Share
from luwu.wire.description import Description, parse_description
from switch_emu.node.kernels.make import check_known
from switch_emu.node.page_updates import note_bytes, redo_of
from switch_emu.node.pages import node_layout_hash, store_config
from switch_emu.node.plan import NodePlan, budget_for_pages, whole_bytes
from switch_emu.node.spec import NodeSpec
from switch_emu.process.places import WeightsPlaces, places_bytes
from switch_emu.store import DecidedStep, FilePageStore, MemoryPageStore, PageStore, TieredPageStore
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.directory import CONFIG_NAME, Claim, store_disk_bytes
from switch_emu.store.logged import LoggedPageStore
from switch_emu.store.spill import SpillFile
from switch_emu.store.sums import SumShape

_TWO_SIDES = "two sides of the state take"


class NodeStorage:
    """Opens and makes the storage of a node; callers close it."""

    def __init__(
        self, spec: NodeSpec, plan: NodePlan, reserve: Callable[[int], memoryview]
    ) -> None:  # fmt: skip
        """`reserve`: reserves shared memory."""
        self._spec, self._plan, self._reserve = spec, plan, reserve
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
        config = store_config(description, spec.number, spec.replicas)
        # Reject unknown aggregators and optimizers before there are pages.
        make_aggregator(description.aggregate, spec.world_size)
        check_known(description.optimizer, description.state_fields)
        if spec.state is None:
            check_fits_in_ram(spec, self._plan, description)
            apart = self._weights_apart(description)
            return MemoryPageStore(config, in_place=is_in_place(description), weights=apart)
        if not log_slots(spec, self._plan, description):  # these raise while there is no directory
            bytes_for_pages(spec, self._plan, description)
        else:
            with _naming_flag():
                check_space(spec.state, disk_bytes(spec, self._plan, description))
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
        nbytes = bytes_in_place(self._spec, self._plan, description)
        if nbytes and self._places is None:
            masters = {
                extent.index for extent in _extents_apart(self._spec, self._plan, description)
            }
            memory, count = self._reserve(nbytes), _places_count(description)
            self._places = WeightsPlaces(description.layout, memory, count, masters)
        return self._places

    def _weights_apart(self, description: Description) -> dict[int, memoryview]:
        """Where the weights of pages lie apart: in their places."""
        places = self.make_places(description)
        found: dict[int, memoryview] = {}
        if places is None:
            return found
        for extent in _extents_apart(self._spec, self._plan, description):
            memory = places.memory(extent.index)
            for chunk in extent.chunks:
                found[chunk] = memory
                memory = memory[description.layout.chunks[chunk].wire_bytes :]
        return found

    def spare_bytes(self, description: Description) -> int:
        """Memory for pages that a state in place has no use for: it is for sums, beside the plan's,
        as all sums of a step wait for its end."""
        spec, plan = self._spec, self._plan
        if not is_in_ram(spec, plan, description) or not is_in_place(description):
            return 0
        taken = bytes_in_place(spec, plan, description) + bytes_of_records(spec, plan, description)
        return max(0, plan.resident_bytes - taken - whole_bytes(description.layout))

    def _in_front(self, file: FilePageStore, description: Description) -> PageStore:
        """The store that the job works with: all pages in RAM and a log, or as many as fit.

        Raises StoreFullError if the log has no space, StateError if it cannot be redone.
        """
        spec, config = self._spec, file.config
        file.redo = redo_of(config)
        if spec.optimizer_nodes == 1 and file.prepared is not None:
            file.decide(file.prepared.version, file.prepared.attempt)
        if not log_slots(spec, self._plan, description):
            file.keep_log(None)
            resident_bytes = bytes_for_pages(spec, self._plan, description)
            rate = spec.disk_bytes_per_s
            return TieredPageStore(file, resident_bytes, disk_bytes_per_s=rate)
        with _naming_flag():
            file.keep_log(log_shape(spec, description))
        apart = self._weights_apart(description)
        ram = MemoryPageStore(
            config, in_place=is_in_place(description), weights=apart, pins=file.path
        )
        return LoggedPageStore(file, ram)


@contextmanager
def _naming_flag() -> Iterator[None]:
    """The error of a disk that is too small names a flag with which less is needed."""
    try:
        yield
    except StoreFullError as exc:
        text = f"{exc} A smaller --log-steps takes less for the log of sums, 1 none."
        raise StoreFullError(text) from exc


def log_slots(spec: NodeSpec, plan: NodePlan, description: Description) -> int:
    """Slots of the log of a state on disk: of a node that is alone, and has room for all pages; 0:
    it has none."""
    if spec.state is None or spec.log_steps == 1 or spec.disk_bytes_per_s is not None:
        return 0
    # In memory it would take what pages are in.
    if description.layout.optimizer_nodes > 1 or memory_kind(spec.state) is not None:
        return 0
    needed = bytes_in_ram(description) + whole_bytes(description.layout)
    needed += log_shape(spec, description).memory_bytes
    return spec.log_steps if needed <= plan.resident_bytes else 0


def log_shape(spec: NodeSpec, description: Description) -> SumShape:
    """The log of a job that has one."""
    config, note = store_config(description), note_bytes(description.layout)
    return SumShape(config, spec.log_steps, note)


def disk_bytes(spec: NodeSpec, plan: NodePlan, description: Description) -> int:
    """Bytes of a node's files for its pages, and of its log."""
    found = store_disk_bytes(store_config(description, spec.number, spec.replicas))
    if log_slots(spec, plan, description):
        found += log_shape(spec, description).file_bytes
    return found


def is_in_ram(spec: NodeSpec, plan: NodePlan, description: Description) -> bool:
    """True if all pages are in RAM and written there: without a directory, or beside a log."""
    return spec.state is None or log_slots(spec, plan, description) > 0


def bytes_for_pages(spec: NodeSpec, plan: NodePlan, description: Description) -> int:
    """Memory for resident pages. Raises ConfigError if updates of wholes have no room."""
    left_bytes = plan.resident_bytes - bytes_in_place(spec, plan, description)
    needed = whole_bytes(description.layout)
    if needed > left_bytes:
        wanted = needed if _has_copies(spec) else 2 * needed  # places take half at most
        raise ConfigError(
            f"memory_budget: the update of the largest matrix as a whole takes "
            f"{format_bytes(needed)}, {format_bytes(left_bytes)} are left of the budget; give "
            f"{_budget_for(spec, lambda _: wanted) // 1024}KiB",
            code="E205",
        )
    return left_bytes - needed


def bytes_in_place(spec: NodeSpec, plan: NodePlan, description: Description) -> int:
    """Shared memory for weights that workers read in place; 0: copies are sent."""
    if _has_copies(spec):
        return 0
    in_ram_bytes = 0
    if is_in_ram(spec, plan, description):
        in_ram_bytes = bytes_in_ram(description) + whole_bytes(description.layout)
        in_ram_bytes -= _bytes_apart(spec, plan, description)
    wanted_bytes = places_bytes(description.layout, _places_count(description))
    return plan.in_place_bytes(wanted_bytes, state_in_ram_bytes=in_ram_bytes)


def _has_copies(spec: NodeSpec) -> bool:
    """True if no weights are read in place: of several nodes, a unit's are not adjacent."""
    return not spec.arena_bytes or spec.optimizer_nodes > 1


def _places_count(description: Description) -> int:
    """Places of each extent's weights."""
    return 1 if description.update == "at_step" else 2


def is_in_place(description: Description) -> bool:
    """True if a state in RAM has one side: nothing ends a step whose pages are being updated, as
    they wait for its verdict, and no other node has a say."""
    return description.update == "at_step" and description.layout.optimizer_nodes == 1


def bytes_in_ram(description: Description, number: int = 0, replicas: int = 1) -> int:
    """The pages of a state in RAM, at one node."""
    sides = 1 if is_in_place(description) else 2
    return sides * store_config(description, number, replicas).state_bytes


def bytes_of_records(spec: NodeSpec, plan: NodePlan, description: Description) -> int:
    """The same at a single node, but for masters that lie in the places of their weights."""
    has_places = bytes_in_place(spec, plan, description) > 0
    return bytes_in_ram(description) - has_places * _bytes_apart(spec, plan, description)


def _extents_apart(spec: NodeSpec, plan: NodePlan, description: Description) -> list[Extent]:
    """The extents whose masters lie in the places of their weights, if there are places."""
    layout = description.layout
    if not is_in_ram(spec, plan, description) or not is_in_place(description):
        return []
    return [
        extent
        for extents in layout.unit_extents
        if {layout.extents[index].wire_dtype for index in extents} == {"float32"}
        for extent in map(layout.extents.__getitem__, extents)
        if extent.form.master == "float32" or not extent.trainable
    ]


def _bytes_apart(spec: NodeSpec, plan: NodePlan, description: Description) -> int:
    return sum(extent.wire_bytes for extent in _extents_apart(spec, plan, description))


def check_fits_in_ram(spec: NodeSpec, plan: NodePlan, description: Description) -> None:
    """Raises ConfigError, with a budget that suffices, if a state in RAM has no room."""

    def needed(chunk_bytes: int) -> int:
        layout = replace(description.layout, chunk_bytes=chunk_bytes)
        cut = replace(description, layout=layout)
        return bytes_in_ram(cut, spec.number, spec.replicas) + whole_bytes(description.layout)

    needed_bytes = needed(description.layout.chunk_bytes)
    if needed_bytes > plan.resident_bytes:
        raise ConfigError(
            f"memory_budget: {'the state takes' if is_in_place(description) else _TWO_SIDES} "
            f"{format_bytes(needed_bytes)} of RAM, "
            f"{format_bytes(plan.resident_bytes)} are left of the budget; give "
            f"{_budget_for(spec, needed) // 1024}KiB, or a directory with --state",
            code="E205",
        )


def _budget_for(spec: NodeSpec, needed: Callable[[int], int]) -> int:
    """A budget that leaves so much for pages, by bytes of a chunk."""
    return budget_for_pages(
        needed, budget_bytes=spec.memory_budget_bytes, chunk_bytes=spec.chunk_bytes,
        world_size=spec.world_size, has_switch=spec.has_switch, slot_count=spec.own_slot_count,
        extent_chunks=spec.extent_chunks, in_arenas=spec.arena_bytes > 0,
    )  # fmt: skip


def _held_bytes(aggregator: Aggregator, extent: Extent) -> int:
    """The most that one payload of an extent's gradient takes while it waits."""
    elems = extent.elems
    return max(extent.sum_bytes, aggregator.encoded_bytes(elems), aggregator.sum_bytes(elems))
