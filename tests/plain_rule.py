"""The step rule and the block pool restated plainly: one list entry a block, one pass a step, no sums.

The twin that `tests/test_continuous.py` holds the engine to, on cases that nobody recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Block:
    def __init__(self) -> None:
        self.name: Any = None
        self.users = 0


class PlainServer:
    """Requests are dicts with ids in order of arrival; ``case`` is in the format of the recorded steps."""

    def __init__(self, case: dict[str, Any]):
        self.limits = case["limits"]
        self.size = self.limits["block_size"]
        self.free = [Block() for _ in range(self.limits["num_blocks"] - 1)]
        self.cached: dict[Any, list[Block]] = {}
        self.waiting: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []
        self.peak = 0

    def name(self, request: dict[str, Any], index: int) -> Any:
        shared = (index + 1) * self.size <= request.get("prefix_tokens", 0)
        return (("prefix", request["prefix_id"]) if shared else ("own", request["id"]), index)

    def total(self, request: dict[str, Any]) -> int:
        return request["prompt_tokens"] + request["generated"]

    def key(self, request: dict[str, Any]) -> Any:
        return (request.get("priority", 0), request["rank"])

    def hits(self, request: dict[str, Any]) -> list[Block]:
        found: list[Block] = []
        if self.limits.get("enable_prefix_caching"):
            for index in range((self.total(request) - 1) // self.size):
                blocks = self.cached.get(self.name(request, index))
                if not blocks:
                    break
                found.append(blocks[0])
        return found

    def hand_out(self, request: dict[str, Any], tokens: int) -> None:
        """Blocks for ``tokens`` more, taken from the front; full ones are cached at once."""
        slots = request["computed"] + tokens
        while len(request["blocks"]) * self.size < slots:
            block = self.free.pop(0)
            if block.name is not None:
                self.cached[block.name].remove(block)
                block.name = None
            block.users = 1
            request["blocks"].append(block)
        if self.limits.get("enable_prefix_caching"):
            for index in range(slots // self.size):
                block = request["blocks"][index]
                if block.name is None:
                    block.name = self.name(request, index)
                    self.cached.setdefault(block.name, []).append(block)

    def give_back(self, request: dict[str, Any]) -> None:
        for block in reversed(request["blocks"]):
            block.users -= 1
            if not block.users:
                if block.name is None:
                    self.free.insert(0, block)
                else:
                    self.free.append(block)
        request["blocks"] = []

    def step(self) -> tuple[dict[int, int], list[int], list[int]]:
        """One step: tokens by id, who was preempted, who finished."""
        limits = self.limits
        budget, given, preempted = limits["max_num_batched_tokens"], {}, []
        threshold = limits["long_prefill_token_threshold"]
        capped = threshold > 0 and len(self.running) + len(self.waiting) > 1
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            need = self.total(request) - request["computed"]
            need = min(need, threshold if capped else need, budget)
            while -(-(request["computed"] + need) // self.size) - len(request["blocks"]) > len(self.free):
                fcfs = limits["policy"] == "fcfs"
                victim = self.running[-1] if fcfs else max(self.running, key=self.key)
                if self.running.index(victim) < at:
                    at -= 1
                self.running.remove(victim)
                budget += given.pop(victim["id"], 0)
                self.give_back(victim)
                victim["computed"] = 0
                self.waiting.insert(0, victim)
                preempted.append(victim["id"])
                if victim is request:
                    break
            if request not in self.running:
                break
            self.hand_out(request, need)
            given[request["id"]] = need
            budget -= need
            at += 1
        if not preempted:
            self.admit(budget, given, threshold if capped else 1 << 40)
        return given, sorted(preempted), self.generate(given)

    def admit(self, budget: int, given: dict[int, int], threshold: int) -> None:
        limits = self.limits
        if limits["policy"] == "priority":
            self.waiting.sort(key=self.key)
        while self.waiting and budget > 0 and len(self.running) < limits["max_num_seqs"]:
            request = self.waiting[0]
            hits = self.hits(request)
            need = min(self.total(request) - len(hits) * self.size, threshold)
            if need > budget and not limits["enable_chunked_prefill"]:
                return
            need = min(need, budget)
            idle = sum(not block.users for block in hits)
            if -(-self.total(request) // self.size) - len(hits) + idle > len(self.free):
                return
            for block in hits:
                if not block.users:
                    self.free.remove(block)
                block.users += 1
            request["blocks"], request["computed"] = hits, len(hits) * self.size
            self.hand_out(request, need)
            self.running.append(self.waiting.pop(0))
            given[request["id"]] = need
            budget -= need

    def generate(self, given: dict[int, int]) -> list[int]:
        self.peak = max(self.peak, self.limits["num_blocks"] - 1 - len(self.free))
        finished = []
        for request in list(self.running):
            if request["id"] not in given:
                continue
            request["computed"] += given[request["id"]]
            if request["computed"] == self.total(request):
                request["generated"] += 1
                if request["generated"] == request["output_tokens"]:
                    finished.append(request["id"])
                    self.running.remove(request)
                    self.give_back(request)
        return sorted(finished)


def replay(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The steps of a case, in the format of the record."""
    server = PlainServer(case)
    coming = sorted(case["requests"], key=lambda request: (request["arrival_step"], request["id"]))
    coming = [
        request | {"rank": rank, "generated": 0, "computed": 0, "blocks": []}
        for rank, request in enumerate(coming)
    ]
    clock = 0
    while coming or server.waiting or server.running:
        while coming and coming[0]["arrival_step"] <= clock:
            server.waiting.append(coming.pop(0))
        if not (server.waiting or server.running):
            clock = coming[0]["arrival_step"]
            continue
        tokens, preempted, finished = server.step()
        if tokens or preempted:
            yield {"step": clock, "tokens": tokens, "preempted": preempted, "finished": finished}
        clock += 1
