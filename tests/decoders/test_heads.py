"""The three heads, against their formulas."""

import pytest
import torch

from depict import create_decoder
from depict.decoders.heads import create_head


def logits_by_loops(head, Z, Q):
    """q_c . z + sum_k w_ck (u_ck . z)^2 + b_c, one patch and one class at a time."""
    rows = []
    for z in Z:
        z = z / z.norm() * len(z) ** 0.5
        energies = [
            sum(w * (u @ z) ** 2 for w, u in zip(*pair, strict=True))
            for pair in zip(head.weights, head.directions, strict=True)
        ]
        rows.append(torch.stack([q @ z + e + b for q, e, b in zip(Q, energies, head.bias, strict=True)]))
    return torch.stack(rows)


def disturbed(head):
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


def test_the_subspaces_head_adds_the_energy_along_the_directions_of_a_class():
    head, Z, Q = disturbed(create_head("subspaces", 6, 3, 2, 1.0)), torch.randn(4, 6), torch.randn(3, 6)
    assert torch.allclose(head(Z[None], Q[None])[0], logits_by_loops(head, Z, Q), atol=1e-5)
    assert torch.allclose(head(Z[None], Q), head(Z[None], Q[None]), atol=1e-6)


def test_the_subspaces_head_has_four_directions_and_starts_close_to_a_dot_product():
    head = create_head("subspaces", 256, 20, None, 1.0)
    assert head.directions.shape == (20, 4, 256)
    Z = torch.randn(1, 50, 256)
    energies = head.energies(Z)
    assert energies.abs().mean() < 0.05
    assert (energies / head.weights).mean().item() == pytest.approx(1.0, abs=0.1)


def test_masks_of_the_subspaces_head_do_not_depend_on_the_length_of_tokens():
    decoder, Z = create_decoder("linear", 6, 3, head="subspaces"), torch.randn(1, 4, 6)
    assert torch.allclose(decoder(Z, (2, 2)), decoder(7 * Z, (2, 2)), atol=1e-5)


def test_the_linear_head_is_a_dot_product_with_a_bias():
    head, Z, Q = disturbed(create_head("linear", 6, 3, None, 1.0)), torch.randn(2, 4, 6), torch.randn(2, 3, 6)
    expected = torch.einsum("bnd,bcd->bnc", Z, Q) + head.bias
    assert torch.allclose(head(Z, Q), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["depict_sa", "depict_ca", "segmenter", "ablation"])
def test_refined_class_embeddings_are_the_linear_term_of_every_head(name):
    decoder = create_decoder(name, 64, 5, head="linear").eval()
    trace = decoder.unroll(torch.randn(1, 12, 64), (3, 4))
    cosines = (trace.Z_unit @ trace.Q_unit.mT)[0]
    assert torch.corrcoef(torch.stack([cosines.flatten(), trace.masks[0].flatten(1).mT.flatten()]))[0, 1] > 0.99


def test_every_published_decoder_keeps_the_names_of_its_parameters():
    assert set(create_decoder("linear", 6, 3).state_dict()) == {"head.weight", "head.bias"}
    for name in ("depict_sa", "depict_ca", "segmenter", "ablation"):
        names = set(create_decoder(name, 64, 3).state_dict())
        assert {"class_embeddings", "mask_norm.weight", "mask_norm.bias"} <= names
        assert not any(key.startswith("head.") for key in names)
