"""The authors' own numbers, where ../shared/reference is present: outputs, states and gradients of their code.

Tolerances are those of its README. test_parity.py makes the same comparison with a plain implementation, always.
"""

import pytest
import torch

from depict import create_decoder
from depict.interchange.official_names import our_decoder_state
from support.plain_decoders import decode

DECODERS = {
    "depict_sa": {"layers": 3, "heads": 3, "head_dim": 100},
    "depict_ca": {
        "layers": 3,
        "heads": 3,
        "head_dim": 100,
        "cross_layers": 3,
        "cross_heads": 3,
        "cross_head_dim": 50,
    },
    "cbt": {"layers": 3, "heads": 3, "head_dim": 100},
    "segmenter": {"layers": 2, "heads": 1},
    "linear": {},
}
FILES = {"segmenter": "segmenter_mask", "linear": "segmenter_linear"}


def read(shared, name):
    return torch.load(shared / "reference" / f"{FILES.get(name, name)}.pt", weights_only=True)


def released(vectors):
    """Every number in the file by name: masks, states, gradients in our names."""
    numbers = {"masks": vectors["masks"]}
    for key in ("hidden_after_layer", "z_after_layer", "q_after_layer"):
        numbers |= {f"{key} {i}": state for i, state in enumerate(vectors.get(key, ()))}
    gradients = our_decoder_state(vectors["grads"]) | {"input": vectors["grad_x"]}
    return numbers | {f"gradient {key}": gradient for key, gradient in gradients.items()}


def numbered(vectors, masks, Z, Q):
    """Masks and states by the names of `released`; Z and Q are the embeddings after each step."""
    numbers = {"masks": masks}
    if "hidden_after_layer" in vectors:
        numbers |= {f"hidden_after_layer {i}": torch.cat(pair, 1) for i, pair in enumerate(zip(Z, Q, strict=True))}
    if "z_after_layer" in vectors:
        numbers |= {f"z_after_layer {i}": state for i, state in enumerate(Z[:3])}
        numbers |= {f"q_after_layer {i}": state for i, state in enumerate(Q[3:])}
    return numbers


def grid_of(vectors):
    height, width = vectors["im_size"]
    return int(height) // 16, int(width) // 16


def of_the_plain_decoder(vectors, heads):
    """The same numbers by the plain implementation, in float64."""
    leaves = {key: tensor.double().requires_grad_() for key, tensor in vectors["state_dict"].items()}
    leaves["input"] = vectors["x"].detach().double().requires_grad_()
    plain = decode(leaves, leaves["input"], heads, grid=grid_of(vectors))
    masks = plain.masks.mT.reshape(vectors["masks"].shape)
    (masks * vectors["loss_weight"]).sum().backward()
    gradients = our_decoder_state({key: leaf.grad for key, leaf in leaves.items()})
    numbers = numbered(vectors, masks, plain.Z, plain.Q)
    return numbers | {f"gradient {key}": gradient for key, gradient in gradients.items()}


def of_our_decoder(vectors, name):
    """The same numbers by our decoder, in float32."""
    Z = vectors["x"].detach().clone().requires_grad_()
    decoder = create_decoder(name, Z.shape[-1], vectors["masks"].shape[1], **DECODERS[name]).eval()
    decoder.load_state_dict(our_decoder_state(vectors["state_dict"]))
    trace = decoder.unroll(Z, grid_of(vectors))
    (trace.masks * vectors["loss_weight"]).sum().backward()
    gradients = {key: parameter.grad for key, parameter in decoder.named_parameters()} | {"input": Z.grad}
    steps = trace.steps
    numbers = numbered(vectors, trace.masks, [step.Z for step in steps], [step.Q for step in steps])
    return numbers | {f"gradient {key}": gradient for key, gradient in gradients.items()}


def error(key, actual, expected):
    """The largest difference: absolute for masks and states, relative to the largest entry for gradients."""
    scale = expected.abs().max().item() if key.startswith("gradient") else 1.0
    return (actual - expected).abs().max().item() / scale


@pytest.mark.parametrize("name", DECODERS)
def test_numbers_are_those_of_the_released_code(shared, name, path):
    vectors = read(shared, name)
    expected = released(vectors)
    plain = of_the_plain_decoder(vectors, DECODERS[name].get("heads", 1))
    ours = of_our_decoder(vectors, name)
    assert ours.keys() == plain.keys() == expected.keys()
    for key, reference in expected.items():
        tolerance = 1e-3 if key.startswith("gradient") else 4e-4 if name == "cbt" else 1e-4
        # The vectors are float32: their distance from the plain float64 numbers is their own rounding. It is above
        # 1e-5 for DEPICT-CA, so the explicit path is allowed a multiple of it: other CPUs round differently.
        rounding = error(key, plain[key], reference)
        assert rounding < tolerance, key
        assert error(key, ours[key], reference) < (tolerance if path == "fused" else 1e-5 + 15 * rounding), key


@pytest.mark.parametrize("name", ["depict_sa", "depict_ca", "cbt"])
def test_parameters_start_with_the_spread_of_the_released_ones(shared, name):
    released = our_decoder_state(read(shared, name)["init_state_dict"])
    classes, dim = released["class_embeddings"].shape
    ours = create_decoder(name, dim, classes, **DECODERS[name]).state_dict()
    assert ours.keys() == released.keys()
    for key, tensor in released.items():
        assert ours[key].shape == tensor.shape
        if tensor.numel() > 100 and tensor.std() > 0:
            assert ours[key].std() == pytest.approx(tensor.std().item(), rel=0.15), key
        elif "norm" in key:
            assert torch.equal(ours[key], tensor), key
