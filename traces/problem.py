"""What is computed: the shape of one attention call."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields

from traces.dtypes import DType, dtype

LAYOUTS = ("bhsd", "bshd")
KV_SCALES = ("token", "channel", "head")

FEATURES = {
    "lengths": "sequences of unequal lengths",
    "window": "a sliding window",
    "dim_v": "a head dimension of V unlike that of Q and K",
    "page_size": "paged K and V",
    "quantised_kv": "quantised K and V",
}
"""What a problem may ask for beyond the plain call, and how a refusal calls it."""

WORK = ("forward", "backward", "train")
"""What a plan computes: O from Q, K, V; their gradients from dO; or both."""


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """One attention call, O = softmax(scale * Q K^T + mask) V.

    Attributes:
        batch: independent sequences.
        heads: query heads.
        kv_heads: key/value heads; must divide `heads` (GQA; 1 is MQA). 0 means as many as `heads`.
        seq: query rows per head.
        seq_kv: key/value rows per head. 0 means as many as `seq`.
        dim: head dimension d of Q and K (elements).
        dim_v: head dimension of V and O. 0 means as `dim`.
        dtype: format of Q and O.
        kv_dtype: format of K and V; empty means as `dtype`.
        v_dtype: format of V where it is not that of K; empty means as `kv_dtype`.
        kv_scale: with int8 or fp8 K or V: one fp32 scale per `token`, `channel` or `head`, of each (sequence, KV head).
        outlier_channels: channels of K kept in `dtype` beside a quantised K.
        causal: mask keys past the diagonal, aligned bottom-right: query row i sees key j iff
            j <= i + seq_kv - seq (FlashAttention's convention since v2.1), with each sequence's own lengths.
        window: with `causal`, how many keys up to its diagonal a row sees (sliding window). 0 means all.
        lengths: query rows of each sequence where they differ; `seq` is then their maximum. May hold zeros.
        kv_lengths: key/value rows of each sequence; empty means as `lengths`. `seq_kv` is then their maximum.
        page_size: tokens per page of a paged KV cache. 0 means contiguous K and V.
        prefix: leading tokens whose pages all sequences share.
        layout: memory order of Q, K, V, O, `bhsd` (head-major) or `bshd` (token-major).

    Raises:
        ValueError: one sentence naming the field, its value and what is allowed.
    """

    batch: int = 1
    heads: int = 32
    kv_heads: int = 0
    seq: int = 4096
    seq_kv: int = 0
    dim: int = 128
    dim_v: int = 0
    dtype: str = "fp16"
    kv_dtype: str = ""
    v_dtype: str = ""
    kv_scale: str = "token"
    outlier_channels: int = 0
    causal: bool = False
    window: int = 0
    lengths: tuple[int, ...] = ()
    kv_lengths: tuple[int, ...] = ()
    page_size: int = 0
    prefix: int = 0
    layout: str = "bhsd"

    def __post_init__(self) -> None:
        self._take_lengths()
        for name, default in (
            ("kv_heads", self.heads),
            ("seq_kv", self.seq),
            ("dim_v", self.dim),
            ("kv_dtype", self.dtype),
        ):
            object.__setattr__(self, name, getattr(self, name) or default)
        object.__setattr__(self, "v_dtype", self.v_dtype or self.kv_dtype)
        for name in ("batch", "heads", "kv_heads", "seq", "seq_kv", "dim", "dim_v"):
            _check_whole(name, getattr(self, name), 1)
        for name in ("outlier_channels", "window", "page_size", "prefix"):
            _check_whole(name, getattr(self, name), 0)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        for name in ("dim", "dim_v"):
            if not 8 <= getattr(self, name) <= 640:
                raise ValueError(f"{name} {getattr(self, name)} is outside the supported 8 to 640")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout {self.layout!r} is not one of {', '.join(LAYOUTS)}")
        if self.kv_scale not in KV_SCALES:
            raise ValueError(f"kv_scale {self.kv_scale!r} is not one of {', '.join(KV_SCALES)}")
        if self.window and not self.causal:
            raise ValueError(f"window {self.window} needs causal: it counts keys back from the diagonal")
        if dtype(self.dtype).quantised and self.dtype == "int8":
            raise ValueError("dtype int8 is for K and V only; give Q and O a floating-point format")
        dtype(self.kv_dtype), dtype(self.v_dtype)
        if self.outlier_channels and not dtype(self.kv_dtype).quantised:
            raise ValueError(f"outlier_channels {self.outlier_channels} needs a quantised K, not {self.kv_dtype}")
        if self.outlier_channels > self.dim:
            raise ValueError(f"outlier_channels {self.outlier_channels} is more than dim {self.dim}")
        if self.prefix and not self.page_size:
            raise ValueError(f"prefix {self.prefix} needs a page_size: only pages can be shared")
        if self.prefix > min(self.kv_lengths, default=self.seq_kv):
            raise ValueError(f"prefix {self.prefix} is longer than the shortest sequence")

    def _take_lengths(self) -> None:
        """Check per-sequence lengths and derive batch, seq and seq_kv from them."""
        for name in ("lengths", "kv_lengths"):
            value = tuple(getattr(self, name))
            object.__setattr__(self, name, value)
            for length in value:
                _check_whole(f"each of {name}", length, 0)
            if value and max(value) == 0:
                raise ValueError(f"{name} has no sequence of at least one row")
        if self.kv_lengths and not self.lengths:
            object.__setattr__(self, "lengths", (self.seq,) * len(self.kv_lengths))
        if not self.lengths:
            return
        if not self.kv_lengths:
            object.__setattr__(self, "kv_lengths", self.lengths)
        if len(self.lengths) != len(self.kv_lengths):
            raise ValueError(f"lengths has {len(self.lengths)} sequences but kv_lengths has {len(self.kv_lengths)}")
        if self.batch not in (1, len(self.lengths)):
            raise ValueError(f"batch {self.batch} is not the number of lengths, {len(self.lengths)}")
        object.__setattr__(self, "batch", len(self.lengths))
        object.__setattr__(self, "seq", max(self.lengths))
        object.__setattr__(self, "seq_kv", max(self.kv_lengths))

    @property
    def scale(self) -> float:
        """Softmax scale 1 / sqrt(d)."""
        return float(self.dim) ** -0.5

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def storage(self) -> DType:
        """Format of Q, O (and of S, P in the naive algorithm)."""
        return dtype(self.dtype)

    @property
    def output_storage(self) -> DType:
        """Format of O: that of Q, but bf16 where Q is in 8 bits, as kernels that take such a Q write it."""
        return dtype("bf16") if self.storage.quantised else self.storage

    @property
    def kv_storage(self) -> DType:
        """Format of K (and of V unless `v_dtype` says otherwise)."""
        return dtype(self.kv_dtype)

    @property
    def v_storage(self) -> DType:
        """Format of V."""
        return dtype(self.v_dtype)

    @property
    def features(self) -> frozenset[str]:
        """Which of `FEATURES` this problem asks for."""
        asked = {
            "lengths": bool(self.lengths),
            "window": self.window > 0,
            "dim_v": self.dim_v != self.dim,
            "page_size": self.page_size > 0,
            "quantised_kv": (self.kv_storage.quantised or self.v_storage.quantised) and self.kv_dtype != self.dtype,
        }
        return frozenset(name for name, value in asked.items() if value)

    def require(self, supported: Collection[str] = ()) -> None:
        """Refuse what an algorithm does not do.

        Raises:
            ValueError: the problem asks for a feature that is not among `supported`.
        """
        for name in FEATURES:
            if name in self.features and name not in supported:
                raise ValueError(f"{FEATURES[name]} ({name}) is not supported by this algorithm")

    def rows(self, sequence: int = 0) -> int:
        """Query rows of one sequence."""
        return self.lengths[sequence] if self.lengths else self.seq

    def keys(self, sequence: int = 0) -> int:
        """Key/value rows of one sequence."""
        return self.kv_lengths[sequence] if self.kv_lengths else self.seq_kv

    @property
    def diagonal(self) -> int:
        """Keys that query row 0 sees beyond key 0 under the causal mask: seq_kv - seq (may be negative)."""
        return self.seq_kv - self.seq

    def diagonal_of(self, sequence: int) -> int:
        """`diagonal` of one sequence."""
        return self.keys(sequence) - self.rows(sequence)

    def visible_keys(self, row: int, sequence: int = 0) -> int:
        """One past the last key that query row `row` attends to (0 for a fully masked row)."""
        keys = self.keys(sequence)
        return min(keys, max(0, row + 1 + self.diagonal_of(sequence))) if self.causal else keys

    def first_key(self, row: int, sequence: int = 0) -> int:
        """First key that query row `row` attends to: 0 unless a window hides earlier ones."""
        return max(0, row + 1 + self.diagonal_of(sequence) - self.window) if self.window else 0

    def visible_pairs(self, sequence: int = 0) -> int:
        """Unmasked (query, key) pairs of one head of one sequence."""
        rows, keys = self.rows(sequence), self.keys(sequence)
        if not self.causal:
            return rows * keys
        ends = _sum_of_clipped(self.diagonal_of(sequence) + 1, rows, keys)
        return ends - (_sum_of_clipped(self.diagonal_of(sequence) + 1 - self.window, rows, keys) if self.window else 0)

    def flops(self, work: str = "forward") -> int:
        """Floating-point operations of the matrix products over unmasked pairs (FMA = 2).

        Forward: S = QK^T and O = PV. Backward: S again, dP = dO V^T, dV = P^T dO, dQ = dS K, dK = dS^T Q, the count of
        FlashAttention's benchmarks (2.5 times the forward where dim_v = dim).
        """
        forward, backward = self.dim + self.dim_v, 3 * self.dim + 2 * self.dim_v
        per_pair = {"forward": forward, "backward": backward, "train": forward + backward}[work]
        sequences = range(self.batch) if self.lengths else (0,) * self.batch
        return 2 * self.heads * per_pair * sum(self.visible_pairs(b) for b in sequences)

    def to_dict(self) -> dict[str, object]:
        """Plain fields, as in the JSON contract's `problem`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> AttentionProblem:
        """Inverse of `to_dict`; unknown keys are refused."""
        known = {f.name for f in fields(cls)}
        unknown = set(data) - known
        if unknown:
            raise ValueError(f"problem has unknown fields {sorted(unknown)}")
        return cls(**data)  # type: ignore[arg-type]


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value}")


def _sum_of_clipped(start: int, count: int, most: int) -> int:
    """Sum of min(most, max(0, start + i)) for i in range(count)."""
    first = min(count, max(0, -start))  # terms that are clipped to 0
    last = min(count, max(first, most - start))  # from here on they are clipped to `most`
    rising = last - first
    return rising * (start + first) + rising * (rising - 1) // 2 + (count - last) * most
