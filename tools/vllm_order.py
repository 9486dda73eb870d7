"""Does a real vLLM serve in the order of `estp export-priority`? Send a file's requests at once, see who finishes when.

    vllm serve MODEL --scheduling-policy priority --max-num-seqs 1 &
    python tools/vllm_order.py http://localhost:8000 estp.jsonl [fcfs.jsonl ...]

A request of the lowest priority value keeps the server busy until all others are queued. Printed for each file: the
requests in the order of their last token, Kendall's tau of that order with the priorities and with the order of
sending, and the mean time from sending to the last token. Needs nothing but Python.
"""

import itertools
import json
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

GAP_S = 0.05
BUSY = 40
LOWEST = -(2**62)


def main() -> None:
    """Run each file in turn."""
    url, *files = sys.argv[1:]
    for file in files:
        lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
        finished = send_all(url, lines)
        sent = [line["custom_id"] for line in lines]
        priority = {line["custom_id"]: line["body"]["priority"] for line in lines}
        print(f"{file}: {len(lines)} requests")
        for name, seconds, tokens in finished:
            print(f"  {seconds:7.2f} s  {name:20} priority {priority[name]:>8}  {tokens} tokens")
        order = {name: rank for rank, (name, _, _) in enumerate(finished)}
        by_priority = tau([priority[name] for name in sent], [order[name] for name in sent])
        by_arrival = tau(list(range(len(sent))), [order[name] for name in sent])
        mean = sum(seconds for _, seconds, _ in finished) / len(finished)
        print(f"  Kendall's tau with priority {by_priority}, with arrival {by_arrival}; mean {mean:.2f} s\n")


def send_all(url: str, lines: list[dict[str, Any]]) -> list[tuple[str, float, int]]:
    """(id, seconds from its sending to its answer, tokens) of each request, in the order of the answers."""
    finished: list[tuple[str, float, int]] = []

    def send(line: dict[str, Any]) -> None:
        body, start = json.dumps(line["body"]).encode(), time.perf_counter()
        request = urllib.request.Request(url + line["url"], body, {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=1800))
        usage = answer["usage"]["completion_tokens"]
        finished.append((line["custom_id"], time.perf_counter() - start, usage))

    first = lines[0]["body"]
    busy = {**first, "max_tokens": BUSY, "ignore_eos": True, "priority": first["priority"] and LOWEST}
    threads = []
    for line in [{"custom_id": "", "url": lines[0]["url"], "body": busy}, *lines]:
        threads.append(threading.Thread(target=send, args=(line,)))
        threads[-1].start()
        time.sleep(GAP_S if line["custom_id"] else 1.0)
    for thread in threads:
        thread.join()
    return [one for one in finished if one[0]]


def tau(first: list[int], second: list[int]) -> str:
    """Kendall's tau-b of two columns, or - when one of them is constant."""
    pairs = itertools.combinations(zip(first, second, strict=True), 2)
    signs = [((a[0] > b[0]) - (a[0] < b[0]), (a[1] > b[1]) - (a[1] < b[1])) for a, b in pairs]
    untied = sum(x != 0 for x, _ in signs) * sum(y != 0 for _, y in signs)
    return f"{sum(x * y for x, y in signs) / untied**0.5:+.2f}" if untied else "-"


if __name__ == "__main__":
    main()
