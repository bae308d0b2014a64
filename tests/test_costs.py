"""The formulas against PyTorch's counter, and against what the paper prints."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from depict.commands.info import rounds_to
from depict.config.paper import DIMS, PARAMETERS_SLIP, ROWS
from depict.costs import decoder_costs, encoder_multiply_adds, parameters
from depict.decoders import create_decoder
from depict.encoder import Encoder

COMPUTED = [row for row in ROWS if row.decoder]
MEASURED = {  # millions of parameters, billions of multiply-adds, measured on the authors' code
    ("Segmenter", "ViT-T", 512): (1.030, 2.214),
    ("Segmenter", "ViT-S", 512): (4.050, 6.667),
    ("Segmenter", "ViT-B", 512): (16.063, 22.291),
    ("Segmenter", "ViT-L", 640): (28.495, 60.389),
    ("DEPICT-CA", "ViT-T", 512): (0.205, 1.411),
    ("DEPICT-CA", "ViT-S", 512): (0.582, 3.036),
    ("DEPICT-CA", "ViT-B", 512): (1.165, 4.046),
    ("DEPICT-CA", "ViT-L", 640): (2.480, 16.535),
    ("DEPICT-SA", "ViT-T", 512): (0.203, 2.921),
    ("DEPICT-SA", "ViT-S", 512): (0.407, 3.361),
    ("DEPICT-SA", "ViT-B", 512): (0.813, 4.241),
    ("DEPICT-SA", "ViT-L", 512): (2.011, 9.490),
    ("DEPICT-SA", "ViT-L", 640): (2.011, 17.786),
    ("Cityscapes, Segmenter", "ViT-L", 768): (15.765, 45.214),
    ("Cityscapes, DEPICT-SA", "ViT-L", 768): (0.181, 2.444),
    ("Pascal Context, Segmenter", "ViT-L", 480): (28.403, 29.965),
    ("Pascal Context, DEPICT-SA", "ViT-L", 480): (1.550, 5.575),
}


def costs(row):
    return decoder_costs(row.decoder, DIMS[row.backbone], row.classes, (row.side // 16,) * 2, **row.options)


def counted(name, dim, classes, grid, **options):
    """Multiply-adds by PyTorch's counter, with 5 per element of every LayerNorm."""
    with torch.device("meta"):
        decoder = create_decoder(name, dim, classes, **options).eval().requires_grad_(False)
        Z = torch.empty(1, grid[0] * grid[1], dim)
    norm = {torch.ops.aten.native_layer_norm: lambda shape, *_, **__: 10 * torch.Size(shape).numel()}
    with FlopCounterMode(display=False, custom_mapping=norm) as counter:
        decoder(Z, grid)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("row", COMPUTED, ids=lambda row: f"{row.label} {row.backbone} {row.side}")
def test_formulas_count_what_pytorch_counts(row):
    grid = (row.side // 16, row.side // 16 - 1)
    _, flops = decoder_costs(row.decoder, DIMS[row.backbone], row.classes, grid, **row.options)
    assert flops == counted(row.decoder, DIMS[row.backbone], row.classes, grid, **row.options)


def test_the_linear_decoder_counts_one_product():
    assert decoder_costs("linear", 64, 5, (3, 4)) == (64 * 5 + 5, 12 * 64 * 5)


@pytest.mark.parametrize("row", COMPUTED, ids=lambda row: f"{row.label} {row.backbone} {row.side}")
def test_every_row_rounds_to_the_printed_digit_but_for_the_known_slip(row):
    size, flops = costs(row)
    assert rounds_to(flops, row.flops, 9) in (True, None)
    if row.note == PARAMETERS_SLIP:
        assert rounds_to(size, row.parameters, 6) is False
        one_layer, _ = decoder_costs("depict_sa", 1024, 19, (48, 48), layers=1, heads=4, head_dim=19)
        assert rounds_to(one_layer, row.parameters, 6) is True
    else:
        assert rounds_to(size, row.parameters, 6) in (True, None)


@pytest.mark.parametrize("key", MEASURED, ids=str)
def test_costs_are_those_measured_on_the_released_code(key):
    row = next(row for row in COMPUTED if (row.label, row.backbone, row.side) == key)
    size, flops = costs(row)
    assert (round(size / 1e6, 3), round(flops / 1e9, 3)) == MEASURED[key]


def test_encoder_costs_are_counted_on_meta_tensors():
    with torch.device("meta"):
        encoder = Encoder("vit_tiny_patch16_224", (32, 32), dim=64, depth=1)
    tokens, dim = 5, 64
    block = 12 * tokens * dim**2 + 2 * tokens**2 * dim + 2 * 5 * tokens * dim
    assert encoder_multiply_adds(encoder, (32, 32)) == 4 * 16 * 16 * 3 * dim + block + 5 * tokens * dim
    assert parameters(encoder) == sum(p.numel() for p in encoder.parameters())
