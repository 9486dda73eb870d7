"""The paged KV cache: blocks counted, freed and, with prefix caching, found again by their names.

A block is named by all tokens up to its end (vLLM hashes them). Names are never spelled out here:
a request says which *families* of names its first full blocks bear (a shared prompt prefix, a
chunk of a trace with hash ids), and whatever follows is its own. Of its own blocks nobody but the
request itself can ever ask, and it asks only after a preemption; so they are counted, not listed,
and a request costs the same whether it fills ten blocks or ten thousand.

The free list of vLLM is kept as a number of blocks that bear no name worth keeping (its front) and a
queue of `Part` runs, oldest first. Blocks are taken from the front and lose their name; a run of one
sequence is freed tail first, so it is eaten from its high end and the head lives longest.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from traces.errors import InputError


@dataclass(frozen=True)
class Memory:
    """What a device holds, from which the number of KV blocks follows as vLLM computes it.

    Attributes:
        device_bytes: memory of the device (all devices of a tensor-parallel replica together).
        weight_bytes: what the weights take of it, and anything else that stays.
        kv_bytes_per_token: 2 (K and V) x layers x KV heads x head size x bytes a number.
        gpu_memory_utilization: the share of the memory that may be used (vLLM 0.19's default).

    Raises:
        InputError: the numbers leave no room for a block.
    """

    device_bytes: float
    weight_bytes: float
    kv_bytes_per_token: float
    gpu_memory_utilization: float = 0.92

    def __post_init__(self) -> None:
        if not (self.kv_bytes_per_token > 0 and self.weight_bytes >= 0 and self.gpu_memory_utilization <= 1):
            raise InputError(
                f"memory: {self} needs kv_bytes_per_token > 0, weight_bytes >= 0 and "
                "gpu_memory_utilization <= 1"
            )

    def blocks(self, block_size: int) -> int:
        """KV blocks of ``block_size`` tokens, vLLM's own among them."""
        room = self.device_bytes * self.gpu_memory_utilization - self.weight_bytes
        blocks = int(room // (self.kv_bytes_per_token * block_size))
        if blocks < 2:
            raise InputError(
                f"memory: {room:.3g} bytes beside the weights hold {max(blocks, 0)} KV blocks of {block_size} "
                "tokens; at least 2 are needed"
            )
        return blocks


class Part:
    """Consecutive blocks ``[lo, hi)`` of one family, all referred to by the same ``refs`` requests.

    ``layer`` is None for blocks that no other request can ask for. Those with no ``refs`` are in the
    free list, between ``older`` and ``younger`` ones.
    """

    __slots__ = ("hi", "layer", "lo", "older", "refs", "younger")

    def __init__(self, layer: Layer | None, lo: int, hi: int, refs: int):
        self.layer, self.lo, self.hi, self.refs = layer, lo, hi, refs
        self.older = self.younger = self

    def link(self, older: Part) -> None:
        """Enter the free list right after ``older``."""
        self.older, self.younger = older, older.younger
        older.younger.older = self
        older.younger = self

    def unlink(self) -> None:
        """Leave the free list."""
        self.older.younger, self.younger.older = self.younger, self.older


class Layer:
    """One copy of a family's blocks. A block cached while another bears its name goes to a later layer.

    So of several blocks with one name, the one in the earliest layer was cached first.
    """

    __slots__ = ("family", "parts")

    def __init__(self, family: Family):
        self.family = family
        self.parts: list[Part] = []

    def split(self, at: int) -> None:
        """Make ``at`` a boundary between parts; in the free list, the upper half comes first."""
        for i, part in enumerate(self.parts):
            if part.lo < at < part.hi:
                lower = Part(self, part.lo, at, part.refs)
                part.lo = at
                if not part.refs:
                    lower.link(part)
                self.parts.insert(i, lower)
                return


class Family:
    """All cached blocks whose names come from one source; block 0 is the first that it names."""

    __slots__ = ("layers", "name")

    def __init__(self, name: Hashable):
        self.name = name
        self.layers: list[Layer] = []

    def find(self, index: int) -> tuple[Layer, Part, int] | None:
        """The first cached block ``index``: its layer, its part, and up to where they are the first."""
        end = None
        for layer in self.layers:
            for part in layer.parts:
                if part.lo <= index < part.hi:
                    return layer, part, part.hi if end is None else min(end, part.hi)
                if part.lo > index and (end is None or part.lo < end):
                    end = part.lo
        return None


Chain = Sequence[tuple[Hashable, int]]
"""Families that name a request's first full blocks, in order, with how many blocks each names."""

Hold = tuple[Layer, int, int]
"""Blocks ``[lo, hi)`` of a layer that a request refers to."""


class Holding:
    """The named blocks that one request refers to, and what it needs to find its own again.

    A request that shares nothing refers to no named blocks. Preempted, it leaves one run (``own``);
    only if it may not take all of it back (the last token is always computed) do copies of one
    name arise, and its blocks become a family like any other (``private``).
    """

    __slots__ = ("at", "before", "chain", "held", "named", "own", "private", "shared_blocks")

    def __init__(self, chain: Chain = ()):
        self.chain = chain
        self.shared_blocks = sum(size for _, size in chain)
        self.held: list[Hold] = []
        self.named = 0  # blocks covered by `held`: always the first ones of the sequence
        self.at = self.before = 0  # the place in the chain that names the next one, and the blocks before it
        self.own: Part | None = None
        self.private: Family | None = None


class BlockPool:
    """Counts free blocks, and remembers names while caching is used.

    Attributes:
        usable: blocks for requests; vLLM keeps one of ``num_blocks`` for itself.
        free: blocks that nobody refers to. queued: how many of them are cached, and lie behind the others.
    """

    def __init__(self, num_blocks: int):
        self.usable = num_blocks - 1
        self.free = self.usable
        self.families: dict[Hashable, Family] = {}
        self._ring = Part(None, 0, 0, 0)  # closes the list: after it the oldest run, before it the youngest
        self.queued = 0
        self._dead: Part | None = None  # the youngest run, if it is one of finished requests

    def allocate(self, blocks: int) -> None:
        """Take blocks from the front of the free list; they lose the names that they had."""
        self.free -= blocks
        if self.free < self.queued:
            self._evict(self.queued - self.free)

    def release(self, named: int, unnamed: int) -> None:
        """Free blocks whose names nobody can ask for: ``named`` full ones, and others.

        The full ones go behind everything that is cached, if anything is.
        """
        self.free += named + unnamed
        if self.queued and named:
            if self._dead is None:
                self._dead = Part(None, 0, 0, 0)
                self._dead.link(self._ring.older)
            self._dead.hi += named
            self.queued += named

    def find(self, holding: Holding, limit: int) -> tuple[list[Hold], int, int]:
        """The longest run of cached blocks from the start of a sequence, at most ``limit`` of them.

        Returns: the runs, how many blocks they are, and how many of these lie in the free list.
        """
        runs: list[Hold] = []
        own = holding.own
        if own is not None:
            if own.hi <= limit:
                return runs, own.hi, own.hi
            _make_family(holding, own)
        hits = idle = 0
        for name, size in (*holding.chain, (None, limit)) if holding.private else holding.chain:
            family = holding.private if name is None else self.families.get(name)
            if family is None or hits >= limit:
                break
            index, stop = 0, min(size, limit - hits)
            while index < stop and (found := family.find(index)):
                layer, part, end = found
                end = min(end, stop)
                runs.append((layer, index, end))
                if not part.refs:
                    idle += end - index
                index = end
            hits += index
            if index < size:
                break
        return runs, hits, idle

    def take(self, holding: Holding, runs: list[Hold]) -> None:
        """Refer to cached blocks that `find` returned; those in the free list leave it."""
        assert not holding.held
        if holding.own is not None:
            self._dequeue(holding.own)
            holding.own = None
        for layer, lo, hi in runs:
            layer.split(lo)
            layer.split(hi)
            for part in layer.parts:
                if lo <= part.lo < hi:
                    if not part.refs:
                        self._dequeue(part)
                    part.refs += 1
            holding.held.append((layer, lo, hi))
            holding.named += hi - lo
        self._move_on(holding)

    def name(self, holding: Holding, blocks: int) -> None:
        """Cache the first ``blocks`` blocks of a sequence, all full, under the families that name them.

        Call it when slots are handed out, for blocks that others may share; own blocks are named
        when they are freed (`forget`), since nobody can look for them before.
        """
        while holding.named < blocks:
            family: Family | None = holding.private
            end, size = blocks - holding.before, 0
            if holding.at < len(holding.chain):
                name, size = holding.chain[holding.at]
                end = min(end, size)
                family = self.families.get(name)
                if family is None:
                    family = self.families[name] = Family(name)
            assert family is not None
            first = holding.named - holding.before
            if not (first and _lengthen(holding, family, first, end)):
                self._append(holding, family, first, end)
            holding.named = holding.before + end
            if end == size:
                self._move_on(holding)

    @staticmethod
    def _move_on(holding: Holding) -> None:
        chain = holding.chain
        while holding.at < len(chain) and holding.before + chain[holding.at][1] <= holding.named:
            holding.before += chain[holding.at][1]
            holding.at += 1

    def forget(self, holding: Holding, named: int, unnamed: int, finished: bool) -> None:
        """Give all blocks of a sequence back: ``named`` full ones and ``unnamed`` others.

        A preempted sequence keeps its names: resumed soon, it finds its own blocks.
        """
        if not holding.chain and holding.private is None:
            if finished:
                self.release(named, unnamed)
            else:
                self.release(0, unnamed)
                holding.own = Part(None, 0, named, 0)
                if named:
                    self._enqueue(holding.own)
            return
        if not finished:
            if holding.private is None:
                holding.private = Family(None)
            self.name(holding, named)
            self.release(0, unnamed)
        else:
            self.name(holding, min(named, holding.shared_blocks))
            own = named - holding.named
            while holding.held and holding.held[-1][0].family is holding.private:
                layer, lo, hi = holding.held.pop()
                layer.parts = [part for part in layer.parts if not lo <= part.lo < hi]
                own += hi - lo
            self.release(own, unnamed)
        for layer, lo, hi in reversed(holding.held):
            for part in reversed(layer.parts):
                if lo <= part.lo < hi:
                    part.refs -= 1
                    if not part.refs:
                        self._enqueue(part)
        holding.held, holding.named, holding.at, holding.before = [], 0, 0, 0

    def _append(self, holding: Holding, family: Family, lo: int, hi: int) -> None:
        """Put newly filled blocks ``[lo, hi)`` into a layer; the sequence holds block ``lo - 1``."""
        mine = None
        if holding.held and holding.held[-1][0].family is family:
            mine = holding.held[-1][0]
            assert holding.held[-1][2] == lo
        while lo < hi:
            found = family.find(lo)
            end, layer = hi, mine
            if found is not None:  # another block bears this name and was first
                end = min(hi, found[2])
                if mine is None or mine is not family.layers[-1] or mine.parts[-1].hi > lo:
                    layer = None
            if layer is None:
                layer = Layer(family)
                family.layers.append(layer)
            self._grow(holding, layer, lo, end)
            mine, lo = layer, end

    @staticmethod
    def _grow(holding: Holding, layer: Layer, lo: int, hi: int) -> None:
        last = layer.parts[-1] if layer.parts else None
        mine = bool(holding.held) and holding.held[-1][0] is layer
        if last is not None and mine and last.hi == lo and last.refs == 1:
            last.hi = hi
        else:
            layer.parts.append(Part(layer, lo, hi, 1))
        if mine:
            holding.held[-1] = (layer, holding.held[-1][1], hi)
        else:
            holding.held.append((layer, lo, hi))

    def _enqueue(self, part: Part) -> None:
        self.free += part.hi - part.lo
        self.queued += part.hi - part.lo
        part.link(self._ring.older)
        self._dead = None

    def _dequeue(self, part: Part) -> None:
        self.free -= part.hi - part.lo
        self.queued -= part.hi - part.lo
        part.unlink()

    def _evict(self, blocks: int) -> None:
        self.queued -= blocks
        while blocks:
            part = self._ring.younger
            size = part.hi - part.lo
            if size > blocks:
                part.hi -= blocks
                return
            part.unlink()
            if part is self._dead:
                self._dead = None
            if part.layer is not None:
                self._drop(part.layer, part)
            part.hi = part.lo  # who looks for it finds nothing
            blocks -= size

    def _drop(self, layer: Layer, part: Part) -> None:
        layer.parts.remove(part)
        family = layer.family
        if not layer.parts:
            family.layers.remove(layer)
            if not family.layers and family.name is not None:
                del self.families[family.name]


def _lengthen(holding: Holding, family: Family, lo: int, hi: int) -> bool:
    """Let a sequence that alone has a family's last blocks have more of them, the usual case of `_append`."""
    part = family.layers[0].parts[-1] if len(family.layers) == 1 else None
    if part is None or part.hi != lo or part.refs != 1:
        return False
    layer, first, _ = holding.held[-1]
    part.hi = hi
    holding.held[-1] = (layer, first, hi)
    return True


def _make_family(holding: Holding, own: Part) -> None:
    """Let a request's own run be a family, so that parts of it can be told apart."""
    holding.private, holding.own = Family(None), None
    own.layer = Layer(holding.private)
    holding.private.layers.append(own.layer)
    own.layer.parts.append(own)
