"""Every decoder against a plain implementation of the released ones, on random weights: no files needed."""

import copy

import pytest
import torch

from depict import create_decoder
from depict.interchange.official_names import our_decoder_state
from support.official_model import CLASSES, decoder_shapes
from support.plain_decoders import decode

DIM, GRID = 24, (2, 6)
CASES = {  # decoder, its options, numbers of heads of the plain decoder
    "depict_sa": ("depict_sa", {"layers": 2, "heads": 3, "head_dim": 4}, {"heads": 3}),
    "depict_ca": (
        "depict_ca",
        {"layers": 2, "heads": 3, "head_dim": 4, "cross_layers": 3, "cross_heads": 2, "cross_head_dim": 3},
        {"heads": 3, "cross_heads": 2},
    ),
    "cbt": ("cbt", {"layers": 2, "heads": 3, "head_dim": 4}, {"heads": 3, "grid": GRID}),
    "segmenter": ("segmenter", {"layers": 2, "heads": 4}, {"heads": 4}),
    "segmenter, wider than its tokens": ("segmenter", {"layers": 2, "heads": 2, "width": 32}, {"heads": 2}),
    "linear": ("linear", {}, {}),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.fixture(params=CASES.values(), ids=CASES, scope="module")
def case(request):
    """Our decoder in float64, tokens, and what the plain decoder with the same tensors gives."""
    (name, options, heads), g = request.param, torch.Generator().manual_seed(0)
    shapes = decoder_shapes(name, DIM, options.get("width", DIM))
    state = {key: 0.5 * torch.randn(shape, generator=g, dtype=torch.float64) for key, shape in shapes.items()}
    decoder = create_decoder(name, DIM, CLASSES, **options).eval().double()
    decoder.load_state_dict(our_decoder_state(state))
    Z, weight = (torch.randn(2, 12, size, generator=g, dtype=torch.float64) for size in (DIM, CLASSES))
    leaves = {key: tensor.clone().requires_grad_() for key, tensor in (state | {"input": Z}).items()}
    plain = decode(leaves, leaves["input"], **heads)
    (plain.masks * weight).sum().backward()
    return decoder, Z, weight, plain, our_decoder_state({key: leaf.grad for key, leaf in leaves.items()})


def close(actual, expected, tolerance):
    return (actual - expected).abs().max() < tolerance * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_masks_states_and_gradients_are_those_of_the_plain_decoder(case, path, dtype):
    decoder, Z, weight, plain, gradients = case
    decoder = copy.deepcopy(decoder).to(dtype)
    tokens = Z.to(dtype, copy=True).requires_grad_()
    trace = decoder.unroll(tokens, GRID)
    masks = trace.masks.flatten(2).mT
    assert close(masks, plain.masks, TOLERANCE[dtype])
    assert len(trace.steps) == len(plain.Z)
    for step, Z_plain, Q_plain in zip(trace.steps, plain.Z, plain.Q, strict=True):
        assert close(step.Z, Z_plain, TOLERANCE[dtype])
        assert close(step.Q, Q_plain, TOLERANCE[dtype])
    (masks * weight.to(dtype)).sum().backward()
    ours = {key: parameter.grad for key, parameter in decoder.named_parameters()} | {"input": tokens.grad}
    assert ours.keys() == gradients.keys()
    for key, gradient in gradients.items():
        assert close(ours[key], gradient, TOLERANCE[dtype]), key
