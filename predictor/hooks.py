"""A look at the hidden states between the layers of a decoder while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def layer_inputs(decoder: Any, take: Callable[[int, Tensor], None]) -> Iterator[None]:
    """During a forward pass call `take(k, states)` with the (B, N, d) input of each layer k."""

    def hook(k: int) -> Any:
        def run(_: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            take(k, args[0] if args else options["hidden_states"])

        return run

    hooks = [
        layer.register_forward_pre_hook(hook(k), with_kwargs=True) for k, layer in enumerate(decoder.layers)
    ]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()
