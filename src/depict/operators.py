"""MSSA and MSCA: attention as a gradient step on the coding rate; CBSA, its successor with representatives.

Tokens are rows, so every formula is the transpose of the paper's: Z (..., N, D), Q (..., C, D), and P (K, D) with
K = heads * head_dim bases as rows; rows h * head_dim to (h + 1) * head_dim are the basis P'_h of head h.

Each operator is a function of tensors, and an `nn.Module` that owns P and a step size. The released `softmax` form
has two equivalent paths: fused (`scaled_dot_product_attention`, which stores nothing of size N x N) and explicit, which
also returns the attention. The `exact` form keeps the inverse that the softmax replaces; its cost is linear in N.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depict.errors import UserError, unknown
from depict.gram import at_least_float32, gram_matrices, masked_solve, regularized_inverse, token_weights

OPERATORS = ("softmax", "exact")
"""Forms of MSSA and MSCA: as released, or the gradient that it was derived from."""
EXACT_STEP = -0.1
"""Initial step size of the exact form: a short step that lowers the rate."""


def mssa(Z: Tensor, P: Tensor, heads: int, dropout: float = 0.0) -> Tensor:
    """Multi-head subspace self-attention of Z: (..., N, D). Paper eq. (23)-(24), softmax scaled as released."""
    W = _project(Z, P, heads)
    return _lift(F.scaled_dot_product_attention(W, W, W, dropout_p=dropout), P)


def mssa_explicit(Z: Tensor, P: Tensor, heads: int, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """`mssa` and its attention A (..., heads, N, N), whose rows sum to 1."""
    W = _project(Z, P, heads)
    A = attention_weights(W, W, W.shape[-1] ** -0.5)
    return _lift(F.dropout(A, dropout) @ W, P), A


def msca(Q: Tensor, Z: Tensor, P: Tensor, heads: int, dropout: float = 0.0, mask: Tensor | None = None) -> Tensor:
    """Multi-head subspace cross-attention of Q to Z: (..., C, D). Paper eq. (20)-(21), softmax scaled as released.

    A bool `mask` (..., C, N) says which tokens each row of Q attends to, at least one; all by default.
    """
    V, W = _project(Q, P, heads), _project(Z, P, heads)
    mask = None if mask is None else mask.unsqueeze(-3)
    return _lift(F.scaled_dot_product_attention(V, W, W, attn_mask=mask, dropout_p=dropout), P)


def msca_explicit(
    Q: Tensor, Z: Tensor, P: Tensor, heads: int, dropout: float = 0.0, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`msca` and its attention A (..., heads, C, N), whose rows sum to 1."""
    V, W = _project(Q, P, heads), _project(Z, P, heads)
    A = attention_weights(V, W, W.shape[-1] ** -0.5, mask)
    return _lift(F.dropout(A, dropout) @ W, P), A


def mssa_exact(Z: Tensor, P: Tensor, a: Tensor, step_size: Tensor | float = 1.0) -> Tensor:
    """step_size * sum_h W_h (I + a_h W_h^T W_h)^-1 P'_h with W_h = Z P'_h^T, a (heads,): (..., N, D).

    The gradient of sum_h R_h / a_h, where R_h = 1/2 logdet(I + a_h W_h^T W_h) is the projected coding rate: paper eq.
    (22) before its inverse is replaced by a softmax. a = M / (N epsilon^2) in the paper.
    """
    return _exact_step(Z, Z, P, a, step_size)


def msca_exact(
    Q: Tensor, Z: Tensor, P: Tensor, a: Tensor, step_size: Tensor | float = 1.0, mask: Tensor | None = None
) -> Tensor:
    """step_size * sum_h V_h (I + a_h W_h^T W_h)^-1 P'_h with V_h = Q P'_h^T, W_h = Z P'_h^T, a (heads,): (..., C, D).

    The gradient with respect to Q of sum_h 1/2 tr(V_h (I + a_h W_h^T W_h)^-1 V_h^T): what Q would add to the coding
    rate of Z, to first order and divided by a_h (docs/theory.md). With a `mask` (..., C, N), each row of Q has a Gram
    matrix of its own: N times the mean of w w^T over its tokens, so that a keeps its meaning.
    """
    if mask is None:
        return _exact_step(Q, Z, P, a, step_size)
    V, W = _project(Q, P, len(a)), _project(Z, P, len(a))
    return step_size * _lift(masked_solve(V, W, a, token_weights(mask, W)), P)


def exact_kernel(Q: Tensor, Z: Tensor, P: Tensor, a: Tensor, mask: Tensor | None = None) -> Tensor:
    """K_h = a_h V_h (I + a_h W_h^T W_h)^-1 W_h^T, the signed weights of the exact form: (..., heads, C, N).

    For Q = Z, W_h (I + a_h W_h^T W_h)^-1 = (I - K_h) W_h: a token minus its prediction from all tokens. A few
    rows Q of Z give those rows of K_h, without anything of size N x N.
    """
    heads = len(a)
    given = _project(Q, P, heads)
    V, W = at_least_float32(given), at_least_float32(_project(Z, P, heads))
    with torch.autocast(W.device.type, enabled=False):
        if mask is None:
            inverse = regularized_inverse(gram_matrices(W.transpose(-2, -3).flatten(-2), heads), a)
            kernel = V @ inverse @ W.mT
        else:
            weights = token_weights(mask, W)
            kernel = (masked_solve(V, W, a, weights) @ W.mT) * weights.unsqueeze(-3)
        return (a[:, None, None] * kernel).to(given.dtype)


def mssa_literal(Z: Tensor, P: Tensor, heads: int, epsilon: float) -> Tensor:
    """MSSA as printed in paper eq. (12)-(13): softmax without temperature, scaled by M / (N epsilon^2).

    With heads = K, one head per basis (M = 1), it is eq. (8)-(9).
    """
    return msca_literal(Z, Z, P, heads, epsilon)


def msca_literal(Q: Tensor, Z: Tensor, P: Tensor, heads: int, epsilon: float) -> Tensor:
    """MSCA as printed in paper eq. (20)-(21)."""
    V, W = _project(Q, P, heads), _project(Z, P, heads)
    return _literal_scale(Z, W.shape[-1], epsilon) * _lift(attention_weights(V, W, 1.0) @ W, P)


def mssa_literal_step(Z: Tensor, P: Tensor, heads: int, alpha: float, epsilon: float) -> Tensor:
    """Z after one step of size alpha, paper eq. (11); with one head per basis it is eq. (7)."""
    scale = alpha * _literal_scale(Z, P.shape[0] // heads, epsilon)
    return (1 + scale) * Z - scale * mssa_literal(Z, P, heads, epsilon)


def msca_literal_step(Q: Tensor, Z: Tensor, P: Tensor, heads: int, alpha: float, epsilon: float) -> Tensor:
    """Q after one step of size alpha, paper eq. (19)."""
    scale = alpha * _literal_scale(Z, P.shape[0] // heads, epsilon)
    return (1 + scale) * Q - scale * msca_literal(Q, Z, P, heads, epsilon)


def cbsa(W: Tensor, R: Tensor, step_rep: Tensor) -> Tensor:
    """Contract-and-broadcast self-attention of coordinates W (..., heads, N, M): (..., heads, N, M).

    The representatives R (..., heads, n, M) attend to the tokens and take a step, step_rep (heads, 1, 1), which
    contracts them; their self-attention is broadcast back by the same weights. Its cost is linear in N.
    """
    scale = W.shape[-1] ** -0.5
    A = attention_weights(R, W, scale)
    R = R + step_rep * (A @ W)
    return A.mT @ (attention_weights(R, R, scale) @ R)


class SubspaceAttention(nn.Module):
    """Base of MSSA and MSCA: one matrix of bases P (heads * head_dim, dim) and one step size of either sign.

    The update is added, Z + step_size * MSSA(Z), so the paper's alpha is -step_size. P is initialized from
    N(0, 1/dim), the step size from N(0, 1), both as released; the exact form starts at `EXACT_STEP`, and learns
    c > 0 of every head, 1 at the start, with a = c M / N.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, dropout: float = 0.0, operator: str = "softmax"):
        super().__init__()
        check_sizes(dim=dim, heads=heads, head_dim=head_dim)
        check_dropout(dropout)
        if operator not in OPERATORS:
            raise unknown("operator", operator, OPERATORS)
        if operator == "exact" and dropout:
            raise UserError(f"dropout must be 0 with the exact operator, not {dropout}: it has no attention to drop.")
        self.heads = heads
        self.dropout = dropout
        self.exact = operator == "exact"
        self.P = nn.Parameter(torch.empty(heads * head_dim, dim))
        self.step_size = nn.Parameter(torch.empty(1))
        normal_(self.P, dim**-0.5)
        if self.exact:
            self.log_c = nn.Parameter(torch.zeros(heads))
            nn.init.constant_(self.step_size, EXACT_STEP)
        else:
            normal_(self.step_size, 1.0)

    @property
    def active_dropout(self) -> float:
        """Dropout on the attention, 0 in evaluation mode."""
        return self.dropout if self.training else 0.0

    def bases(self) -> Tensor:
        """The basis of every head, (heads, head_dim, dim): a view of P."""
        return self.P.unflatten(0, (self.heads, -1))

    def weights(self, Q: Tensor, Z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention, or the signed kernel of the exact form, of queries Q (..., C, dim) to Z: (..., heads, C, N)."""
        if self.exact:
            return exact_kernel(Q, Z, self.P, self.a(Z.shape[-2]), mask)
        V, W = _project(Q, self.P, self.heads), _project(Z, self.P, self.heads)
        return attention_weights(V, W, W.shape[-1] ** -0.5, mask)

    def a(self, tokens: int) -> Tensor:
        """a = c M / N of every head for N = `tokens`, (heads,), of the exact form."""
        return self.log_c.exp() * (self.P.shape[0] // self.heads / tokens)

    def extra_repr(self) -> str:
        """Sizes shown by `print`."""
        rows, dim = self.P.shape
        form = "operator=exact" if self.exact else f"dropout={self.dropout}"
        return f"dim={dim}, heads={self.heads}, head_dim={rows // self.heads}, {form}"


class MSSA(SubspaceAttention):
    """The update of Z by self-attention: `Z = Z + mssa(norm(Z))`."""

    def forward(self, Z: Tensor) -> Tensor:
        """step_size * MSSA(Z | P), (..., N, dim), by the fused path or in the exact form."""
        if self.exact:
            return mssa_exact(Z, self.P, self.a(Z.shape[-2]), self.step_size)
        return self.step_size * mssa(Z, self.P, self.heads, self.active_dropout)

    def explicit(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """The same update by the explicit path, and the attention or signed kernel (..., heads, N, N)."""
        if self.exact:
            return mssa_exact(Z, self.P, self.a(Z.shape[-2]), self.step_size), self.weights(Z, Z)
        update, A = mssa_explicit(Z, self.P, self.heads, self.active_dropout)
        return self.step_size * update, A


class MSCA(SubspaceAttention):
    """The update of Q by cross-attention to Z: `Q = Q + msca(Q, norm(Z))`. Q is not normalized.

    A bool `mask` (..., C, N) says which tokens each row of Q attends to, at least one; all by default.
    """

    def forward(self, Q: Tensor, Z: Tensor, mask: Tensor | None = None) -> Tensor:
        """step_size * MSCA(Q | Z, P) for Q (..., C, dim) and Z (..., N, dim): (..., C, dim)."""
        if self.exact:
            return msca_exact(Q, Z, self.P, self.a(Z.shape[-2]), self.step_size, mask)
        return self.step_size * msca(Q, Z, self.P, self.heads, self.active_dropout, mask)

    def explicit(self, Q: Tensor, Z: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The same update by the explicit path, and the attention or signed kernel (..., heads, C, N)."""
        if self.exact:
            return msca_exact(Q, Z, self.P, self.a(Z.shape[-2]), self.step_size, mask), self.weights(Q, Z, mask)
        update, A = msca_explicit(Q, Z, self.P, self.heads, self.active_dropout, mask)
        return self.step_size * update, A


class CBSA(nn.Module):
    """The update of [patches, classes] by contract-and-broadcast self-attention: `X = X + cbsa(norm(X), grid)`.

    Representatives start as the mean coordinates of a patch grid of side x side cells. Unlike in MSSA, the output
    matrix is not tied to P. Initialized as released: matrices from N(0, 0.02^2), step sizes of every head from N(0, 1).
    """

    def __init__(self, dim: int, heads: int, head_dim: int, side: int = 10):
        super().__init__()
        check_sizes(dim=dim, heads=heads, head_dim=head_dim, side=side)
        self.heads, self.side = heads, side
        self.P = nn.Parameter(torch.empty(heads * head_dim, dim))
        self.to_out = nn.Linear(heads * head_dim, dim)
        self.step_x = nn.Parameter(torch.empty(heads, 1, 1))
        self.step_rep = nn.Parameter(torch.empty(heads, 1, 1))
        for matrix in (self.P, self.to_out.weight):
            nn.init.trunc_normal_(matrix, std=0.02)
        nn.init.zeros_(self.to_out.bias)
        for step in (self.step_x, self.step_rep):
            normal_(step, 1.0)

    def bases(self) -> Tensor:
        """The basis of every head, (heads, head_dim, dim): a view of P."""
        return self.P.unflatten(0, (self.heads, -1))

    def forward(self, X: Tensor, grid: tuple[int, int]) -> Tensor:
        """The update (B, T, dim) of tokens X (B, T, dim), the first h * w of which are patches on the grid (h, w)."""
        W = _project(X, self.P, self.heads)
        update = self.step_x * cbsa(W, self.representatives(W, grid), self.step_rep)
        return self.to_out(update.transpose(-2, -3).flatten(-2))

    def representatives(self, W: Tensor, grid: tuple[int, int]) -> Tensor:
        """Means of the patches' coordinates W (B, heads, T, M) in side x side cells: (B, heads, side^2, M)."""
        patches = W[..., : grid[0] * grid[1], :]
        if torch.compiler.is_exporting():  # ONNX has no adaptive pooling
            return self._cells(grid, W) @ patches
        maps = patches.transpose(-2, -3).flatten(-2).mT.unflatten(-1, grid)
        return F.adaptive_avg_pool2d(maps, self.side).flatten(-2).unflatten(-2, (self.heads, -1)).mT

    def weights(self, X: Tensor, grid: tuple[int, int], queries: list[int] | None = None) -> Tensor:
        """The signed share of every token in the update of the queries, all by default: (B, heads, queries, T).

        With the softmaxes held fixed, the update is a linear map of W; these are its rows.
        """
        W = _project(X, self.P, self.heads)
        scale, R = W.shape[-1] ** -0.5, self.representatives(W, grid)
        A = attention_weights(R, W, scale)
        contracted = R + self.step_rep * (A @ W)
        means = F.pad(self._cells(grid, W), (0, W.shape[-2] - grid[0] * grid[1]))
        broadcast = A if queries is None else A[..., queries]
        return broadcast.mT @ attention_weights(contracted, contracted, scale) @ (means + self.step_rep * A)

    def _cells(self, grid: tuple[int, int], like: Tensor) -> Tensor:
        """Adaptive average pooling of a grid as a matrix, (side^2, h * w)."""
        rows, columns = (_cell_means(length, self.side, like) for length in grid)
        return (rows[:, None, :, None] * columns[None, :, None, :]).flatten(2).flatten(0, 1)

    def extra_repr(self) -> str:
        """Sizes shown by `print`."""
        rows, dim = self.P.shape
        return f"dim={dim}, heads={self.heads}, head_dim={rows // self.heads}, side={self.side}"


def check_sizes(**sizes: int) -> None:
    """Raise unless every size is at least 1."""
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"{name} must be at least 1, not {value}.")


def check_dropout(dropout: float) -> None:
    """Raise unless `dropout` is a probability below 1."""
    if not 0 <= dropout < 1:
        raise UserError(f"dropout must be in [0, 1), not {dropout}.")


def normal_(tensor: Tensor, std: float) -> None:
    """Fill with N(0, std^2). Meta tensors are skipped: they hold no values, and torch would import its compiler."""
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)


def _project(X: Tensor, P: Tensor, heads: int) -> Tensor:
    """Coordinates of X (..., N, D) in the basis of every head: (..., heads, N, head_dim)."""
    _check_bases(X, P, heads)
    return F.linear(X, P).unflatten(-1, (heads, -1)).transpose(-2, -3)


def _check_bases(X: Tensor, P: Tensor, heads: int) -> None:
    if heads < 1 or P.shape[0] % heads:
        raise UserError(f"{P.shape[0]} bases do not divide into {heads} heads; heads must be a divisor.")
    if X.shape[-1] != P.shape[1]:
        raise UserError(f"embeddings have dimension {X.shape[-1]} but the bases have {P.shape[1]}.")


def _lift(W: Tensor, P: Tensor) -> Tensor:
    """Embeddings (..., N, D) from coordinates (..., heads, N, head_dim), summed over heads."""
    return W.transpose(-2, -3).flatten(-2) @ P


def attention_weights(V: Tensor, W: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """softmax(scale * V W^T) over the keys, for queries V and keys W: (..., heads, queries, keys).

    A bool `mask` (..., queries, keys) leaves out keys.
    """
    scores = V @ W.transpose(-1, -2) * scale
    return (scores if mask is None else scores.masked_fill(~mask.unsqueeze(-3), -torch.inf)).softmax(-1)


def _literal_scale(Z: Tensor, head_dim: int, epsilon: float) -> float:
    """M / (N epsilon^2)."""
    return head_dim / (Z.shape[-2] * epsilon**2)


def _exact_step(Q: Tensor, Z: Tensor, P: Tensor, a: Tensor, step_size: Tensor | float) -> Tensor:
    """step_size * sum_h V_h S_h^-1 P'_h with S_h = I + a_h W_h^T W_h, for queries Q (..., C, D), tokens Z (..., N, D).

    S_h^-1 and the step size are multiplied into P'_h before the tokens, so the work on N tokens is three matrix
    products: N D K, N K M and N D K multiply-adds. Two products in the embedding space, N D D each, may be fewer. Gram
    matrices and inverses are computed in float32 at least: in bfloat16, S_h would not be positive definite.
    """
    heads, (K, D) = len(a), P.shape
    _check_bases(Q, P, heads)
    _check_bases(Z, P, heads)
    if torch.compiler.is_exporting():  # for any number of tokens, so the form must not depend on it
        in_embedding_space = D <= K
    else:
        embedded, projected = exact_work(Z.shape[-2], 0 if Q is Z else Q.shape[-2], K, D, heads)
        in_embedding_space = embedded <= projected
    if in_embedding_space:
        with torch.autocast(Z.device.type, enabled=False):
            bases = at_least_float32(P).unflatten(0, (heads, -1))
            covariance = gram_matrices(Z, 1)
            lifted = regularized_inverse(bases @ covariance @ bases.mT, a) @ bases
            step = step_size * (bases.flatten(0, 1).mT @ lifted.flatten(-3, -2))
        return Q @ step.to(Q.dtype)
    W = F.linear(Z, P)
    V = W if Q is Z else F.linear(Q, P)
    with torch.autocast(Z.device.type, enabled=False):
        lifted = step_size * (
            regularized_inverse(gram_matrices(W, heads), a) @ at_least_float32(P).unflatten(0, (heads, -1))
        )
    return V @ lifted.flatten(-3, -2).to(V.dtype)


def exact_work(tokens: int, queries: int, K: int, D: int, heads: int) -> tuple[int, int]:
    """Multiply-adds of the exact step in the embedding space, and on coordinates W; the cheaper form is computed.

    `queries` is the number of rows of Q, 0 if Q is Z.
    """
    M, rows = K // heads, queries or tokens
    inverse = heads * M**3 // 2  # Cholesky factor M^3 / 6, inverse from it M^3 / 3
    embedded = (tokens + rows) * D * D + 2 * K * D * (D + M)
    projected = (tokens + queries + rows) * K * D + (tokens + D) * K * M
    return embedded + inverse, projected + inverse


def _cell_means(length: int, cells: int, like: Tensor) -> Tensor:
    """Adaptive average pooling of `length` values as a matrix, (cells, length); cells overlap as in PyTorch."""
    cell = torch.arange(cells, device=like.device)[:, None]
    position = torch.arange(length, device=like.device)
    first, last = cell * length // cells, ((cell + 1) * length + cells - 1) // cells
    inside = ((position >= first) & (position < last)).to(like.dtype)
    return inside / inside.sum(-1, keepdim=True)
