"""Poolings of a prompt's token states into one vector: h = sum_i e_i h_i with e = softmax(T / alpha).

    mean, last, max       baselines
    egtp                  T_i = lambda2 H_i              arXiv 2602.11812 (lambda2 = 1)
    semantic              T_i = lambda1 S_i              arXiv 2608.15592, ablation (lambda1 = 1)
    estp                  T_i = lambda1 S_i + lambda2 H_i   arXiv 2608.15592, eq. 1-5

The paper leaves open how the attention received S and the entropy H are scaled before they are added:

    paper       S and H as they are
    visible     S per query that can see token j, S_j N / (N - j); H as it is
    zscore      S and H, each z-scored within the prompt
    detrended   log of the attention received per query that can see token j, less its mean at that position
                over the training prompts (`PositionTrend`), z-scored within the prompt; H z-scored likewise

Everything works on one prompt and many settings at once: weights (G, N) @ hidden states (N, d) -> (G, d).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from predictor.stored import items, named, number, whole
from traces.errors import InputError

Pooling = Literal["mean", "last", "max", "egtp", "semantic", "estp"]
SignalScale = Literal["paper", "visible", "zscore", "detrended"]
_FLOOR = 1e-12


@dataclass(frozen=True)
class PoolingSettings:
    """How to pool: `lambda1` weighs attention received, `lambda2` entropy; `alpha` is the temperature.

    `egtp` uses lambda2 alone and `semantic` lambda1 alone; the baselines use no signal. A zero or weak weight
    is allowed: with both at zero the pooling is the mean. `permuted` is the control that shuffles S within
    the prompt: what S says about *which* token is lost, its distribution is kept.
    Raises InputError for a value out of range.
    """

    pooling: Pooling = "estp"
    signal_scale: SignalScale = "detrended"
    lambda1: float = 1.0
    lambda2: float = 1.0
    alpha: float = 1.0
    permuted: bool = False

    def __post_init__(self) -> None:
        for name, kinds in (("pooling", Pooling), ("signal_scale", SignalScale)):
            if getattr(self, name) not in get_args(kinds):
                raise InputError(f"{name} {getattr(self, name)!r} is not one of {', '.join(get_args(kinds))}")
        for name in ("lambda1", "lambda2", "alpha"):
            number(getattr(self, name), name)
        if not self.alpha > 0:
            raise InputError(f"alpha must be a positive number, not {self.alpha}")
        if not isinstance(self.permuted, bool):
            raise InputError(f"permuted must be true or false, not {self.permuted!r}")
        if self.permuted and self.pooling not in ("semantic", "estp"):
            raise InputError(f"permuted shuffles the attention received, which {self.pooling!r} does not use")

    @property
    def weights(self) -> tuple[float, float]:
        """What S and H are multiplied by before the softmax: (lambda1, lambda2) / alpha, 0 where unused."""
        s = self.lambda1 / self.alpha if self.pooling in ("semantic", "estp") else 0.0
        h = self.lambda2 / self.alpha if self.pooling in ("egtp", "estp") else 0.0
        return s, h

    @property
    def needs_trend(self) -> bool:
        """Whether a `PositionTrend` must be fitted first."""
        return self.signal_scale == "detrended" and self.pooling in ("semantic", "estp")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "PoolingSettings":
        """Raises InputError for what `to_json` does not give."""
        names = [one.name for one in fields(cls)]
        values = named(stored, "pooling", *names)
        if unknown := [key for key in stored if key not in names]:
            raise InputError(f"pooling has an unknown {unknown[0]!r}; it has {', '.join(names)}")
        return cls(*values)


@dataclass(frozen=True)
class PositionTrend:
    """Mean log attention received per visible query at each position, over the training prompts.

    Positions are grouped into bins from the left; a bin ends as soon as it holds `min_count` tokens (or as
    many as there are prompts, if those are fewer). So as long as enough prompts are that long every position
    has its own mean, the attention sink at position 0 above all, and the bins widen where prompts run out. A
    position beyond the last bin has the last bin's value.

    starts: first position of each bin, ascending from 0; values: mean in nats; window: the sliding window
    that the attention was limited to, or None.
    """

    starts: tuple[int, ...]
    values: tuple[float, ...]
    window: int | None = None

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.values) or self.starts[0] != 0:
            raise InputError("a position trend needs one value a bin and bins that start at position 0")
        if any(b <= a for a, b in zip(self.starts, self.starts[1:], strict=False)):
            raise InputError("the bins of a position trend must start at ascending positions")

    @classmethod
    def fit(
        cls, received: Iterable[ArrayLike | Tensor], window: int | None = None, min_count: int = 32
    ) -> "PositionTrend":
        """Fit on the (N,) attention received of each *training* prompt; InputError when there is none."""
        sums, counts, prompts = np.zeros(0), np.zeros(0, np.int64), 0
        for one in received:
            logs = log_visible(one, window).double().cpu().numpy()
            grow = max(0, len(logs) - len(sums))
            sums, counts = np.pad(sums, (0, grow)), np.pad(counts, (0, grow))
            sums[: len(logs)] += logs
            counts[: len(logs)] += 1
            prompts += 1
        if not prompts:
            raise InputError("a position trend needs at least one training prompt")
        enough = min(min_count, prompts)
        starts, held = [], enough
        for position, count in enumerate(counts):
            if held >= enough:
                starts.append(position)
                held = 0
            held += int(count)
        if held < enough:
            starts.pop()
        values = np.add.reduceat(sums, starts) / np.add.reduceat(counts, starts)
        return cls(tuple(starts), tuple(values.tolist()), window)

    def at(self, length: int) -> Tensor:
        """(length,) float32: the trend at positions 0 .. length - 1."""
        bins = np.searchsorted(self.starts, np.arange(length), side="right") - 1
        return torch.tensor(self.values, dtype=torch.float32)[torch.from_numpy(bins)]

    def apply(self, received: ArrayLike | Tensor) -> Tensor:
        """(N,) float32: log attention received per visible query, less the trend (not yet z-scored)."""
        logs = log_visible(received, self.window)
        return logs - self.at(len(logs)).to(logs.device)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "PositionTrend":
        """Raises InputError for what `to_json` does not give."""
        starts, values, window = named(stored, "trend", "starts", "values", "window")
        return cls(
            tuple(whole(start, "trend.starts") for start in items(starts, "trend.starts")),
            tuple(number(value, "trend.values") for value in items(values, "trend.values")),
            None if window is None else whole(window, "trend.window", 1),
        )


def visible(received: ArrayLike | Tensor, window: int | None = None) -> Tensor:
    """(N,) float32: attention received per query that can see the token, S_j N / min(N - j, window)."""
    s = torch.as_tensor(received, dtype=torch.float32)
    queries = torch.arange(len(s), 0, -1, device=s.device)
    return s * len(s) / (queries if window is None else queries.clamp(max=window))


def log_visible(received: ArrayLike | Tensor, window: int | None = None) -> Tensor:
    """(N,) float32: the logarithm of `visible`, whose exact zeros are taken for 1e-12."""
    return visible(received, window).clamp(min=_FLOOR).log()


def zscore(values: Tensor) -> Tensor:
    """(N,): values less their mean, over their standard deviation (ddof 0); zeros when all are alike."""
    centred = values - values.mean()
    spread = centred.square().mean().sqrt()
    return torch.where(spread > 1e-6 * values.abs().max().clamp(min=_FLOOR), centred / spread, 0.0)


def scale_signals(
    entropy: ArrayLike | Tensor,
    received: ArrayLike | Tensor,
    signal_scale: SignalScale,
    trend: PositionTrend | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """S and H of one prompt, (N,) float32 each, as `signal_scale` has them before they are weighed.

    Raises InputError when `detrended` comes without its trend.
    """
    s = torch.as_tensor(received, dtype=torch.float32)
    h = torch.as_tensor(entropy, dtype=torch.float32)
    if signal_scale == "paper":
        return s, h
    if signal_scale == "visible":
        return visible(s, window), h
    if signal_scale == "zscore":
        return zscore(s), zscore(h)
    if trend is None:
        raise InputError("signal_scale 'detrended' needs a position trend fitted on the training prompts")
    return zscore(trend.apply(s)), zscore(h)


def token_weights(
    settings: Sequence[PoolingSettings],
    entropy: ArrayLike | Tensor,
    received: ArrayLike | Tensor,
    *,
    trend: PositionTrend | None = None,
    window: int | None = None,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """(G, N) float32: the weights e of one prompt's N valid tokens under each of G settings; rows sum to one.

    `entropy`, `received`: (N,). `rng` draws the permutation of `permuted` settings, one for all of them; seed
    it by prompt, so that it does not depend on the order of the prompts. `max` has no weights: InputError.
    """
    h = torch.as_tensor(entropy, dtype=torch.float32)
    count = len(h)
    scaled: dict[str, tuple[Tensor, Tensor]] = {}
    shuffle: Tensor | None = None
    scores = torch.zeros(len(settings), count, device=h.device)
    for row, one in zip(scores, settings, strict=True):
        if one.pooling == "max":
            raise InputError("max pooling takes the largest value of each dimension; it has no token weights")
        if one.pooling == "last":
            row[:-1] = -torch.inf
        w_s, w_h = one.weights
        if w_s:
            if one.signal_scale not in scaled:
                scaled[one.signal_scale] = scale_signals(h, received, one.signal_scale, trend, window)
            s, h_scaled = scaled[one.signal_scale]
            if one.permuted:
                if rng is None:
                    raise InputError("permuted pooling needs a random generator")
                if shuffle is None:
                    shuffle = torch.from_numpy(rng.permutation(count)).to(h.device)
                s = s[shuffle]
            row += w_s * s + w_h * h_scaled
        elif w_h:
            # Without S there is no trend to ask for: of H alone the scales only say "as it is" or "z-scored".
            row += w_h * (h if one.signal_scale in ("paper", "visible") else zscore(h))
    return torch.softmax(scores, -1)


def pool(
    hidden: ArrayLike | Tensor,
    settings: Sequence[PoolingSettings],
    entropy: ArrayLike | Tensor,
    received: ArrayLike | Tensor,
    *,
    trend: PositionTrend | None = None,
    window: int | None = None,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """(G, d) float32: one prompt pooled under each of G settings, on the device of `hidden` (N, d).

    The other arguments are those of `token_weights`. Masked tokens must be gone: all N rows are valid.
    """
    states = torch.as_tensor(hidden).float()
    weighted = [k for k, one in enumerate(settings) if one.pooling != "max"]
    pooled = states.amax(0).repeat(len(settings), 1)
    if weighted:
        chosen = [settings[k] for k in weighted]
        weights = token_weights(chosen, entropy, received, trend=trend, window=window, rng=rng)
        pooled[weighted] = weights.to(states.device) @ states
    return pooled
