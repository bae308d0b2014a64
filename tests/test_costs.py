"""The cost formulas against PyTorch's counter, the released code and the paper's printed figures."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from depict.commands.info import rounds_to
from depict.config.paper import MASKFORMER, MASKFORMER_COSTS, paper_rows
from depict.costs import decoder_costs, encoder_multiply_adds, parameters
from depict.decoders import create_decoder
from depict.encoders import create_encoder

ROWS = [pytest.param(row, id=row.config) for row in paper_rows() if row.config != MASKFORMER]
MEASURED = {  # millions of parameters and billions of multiply-adds, measured on the authors' code
    "ade20k/segmenter_vit_t": (1.030, 2.214),
    "ade20k/segmenter_vit_s": (4.050, 6.667),
    "ade20k/segmenter_vit_b": (16.063, 22.291),
    "ade20k/segmenter_vit_l": (28.495, 60.389),
    "ade20k/depict_ca_vit_t": (0.205, 1.411),
    "ade20k/depict_ca_vit_s": (0.582, 3.036),
    "ade20k/depict_ca_vit_b": (1.165, 4.046),
    "ade20k/depict_ca_vit_l": (2.480, 16.535),
    "ade20k/depict_sa_vit_t": (0.203, 2.921),
    "ade20k/depict_sa_vit_s": (0.407, 3.361),
    "ade20k/depict_sa_vit_b": (0.813, 4.241),
    "ade20k/depict_sa_vit_l_512": (2.011, 9.490),
    "ade20k/depict_sa_vit_l": (2.011, 17.786),
    "cityscapes/segmenter_vit_l": (15.765, 45.214),
    "cityscapes/depict_sa_vit_l": (0.181, 2.444),
    "pascal_context/segmenter_vit_l": (28.403, 29.965),
    "pascal_context/depict_sa_vit_l": (1.550, 5.575),
}
ABLATION = {  # millions of parameters of the ablation's mixtures
    "ade20k/ablation_mssa_ista": 0.472,
    "ade20k/ablation_layers_1": 0.265,
    "ade20k/ablation_layers_3": 0.678,
    "ade20k/ablation_mssa": 0.175,
    "ade20k/ablation_ista": 0.355,
    "ade20k/ablation_mssa_mlp": 2.540,
    "ade20k/ablation_mhsa_ista": 1.539,
    "ade20k/ablation_mhsa_mlp": 4.050,
    "ade20k/ablation_depict_sa": 0.407,
}


def costs(row):
    return decoder_costs(row.decoder, row.dim, row.classes, row.grid, **row.options)


def row_of(config):
    return next(row for row in paper_rows() if row.config == config)


def counted(name, dim, classes, grid, device="meta", **options):
    """Multiply-adds of a decoder by PyTorch's counter, with 5 per element of every LayerNorm."""
    with torch.device(device):
        decoder = create_decoder(name, dim, classes, **options).eval().requires_grad_(False)
        Z = torch.empty(1, grid[0] * grid[1], dim)
    norm = {torch.ops.aten.native_layer_norm: lambda shape, *_, **__: 10 * torch.Size(shape).numel()}
    with FlopCounterMode(display=False, custom_mapping=norm) as counter:
        decoder(Z, grid)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("row", ROWS)
def test_formulas_count_what_pytorch_counts(row):
    grid = (row.grid[0], row.grid[1] - 1)
    model = (row.decoder, row.dim, row.classes, grid)
    assert decoder_costs(*model, **row.options)[1] == counted(*model, **row.options)


def test_a_mask_transformer_wider_than_its_tokens_is_counted():
    model = ("segmenter", 64, 5, (3, 4))
    assert decoder_costs(*model, width=128)[1] == counted(*model, width=128)


@pytest.mark.parametrize("head", ["cosine", "linear", "subspaces"])
@pytest.mark.parametrize("name", ["depict_sa", "depict_ca", "segmenter", "linear"])
def test_every_head_is_counted(name, head):
    model = (name, 64, 5, (3, 4))
    assert decoder_costs(*model, head=head)[1] == counted(*model, head=head)


@pytest.mark.parametrize(
    ("dim", "grid"),
    [(64, (12, 16)), (64, (3, 4)), (400, (3, 4))],
    ids=["embedding space", "coordinates of few tokens", "coordinates, D > K"],
)
@pytest.mark.parametrize(("name", "layers"), [("depict_sa", 3), ("depict_ca", 3), ("depict_us", 2)])
def test_the_exact_operator_is_counted_with_its_inverses_which_pytorch_leaves_out(name, layers, dim, grid):
    model = (name, dim, 5, grid)
    inverses = layers * 3 * 100**3 // 2 + (3 * 3 * 50**3 // 2 if name == "depict_ca" else 0)
    counts = counted(*model, device="cpu", operator="exact")
    assert decoder_costs(*model, operator="exact")[1] == pytest.approx(counts + inverses, abs=3)


@pytest.mark.parametrize("masked", [False, True])
def test_the_queries_of_depict_mask_are_counted(masked):
    model = ("depict_mask", 64, 5, (3, 4))
    assert decoder_costs(*model, masked_attention=masked)[1] == counted(*model, masked_attention=masked)


def test_a_masked_query_of_the_exact_operator_counts_a_gram_matrix_and_a_factor_of_its_own():
    options = {"operator": "exact", "masked_attention": True, "queries": 7, "layers": 1}
    inverse, solved = 3 * 100**3 // 2, 3 * 7 * 3 * (50**3 / 6 + 50**2)
    counts = counted("depict_mask", 64, 5, (3, 4), device="cpu", **options)
    assert decoder_costs("depict_mask", 64, 5, (3, 4), **options)[1] == pytest.approx(counts + inverse + solved, abs=3)


@pytest.mark.parametrize(
    ("config", "printed"), [("cbt_vit_t", "1.5"), ("cbt_vit_s", "2.3"), ("cbt_vit_b", "7.8"), ("cbt_vit_l", "22.3")]
)
def test_layers_of_cbt_alone_at_2_per_multiply_add_give_the_printed_gflops(config, printed):
    row = row_of(f"ade20k/{config}")
    tokens = row.grid[0] * row.grid[1] + row.classes
    with torch.device("meta"):
        decoder = create_decoder("cbt", row.dim, row.classes, **row.options)
    norms = 5 * tokens * row.dim * len(decoder.layers)
    assert rounds_to(2 * (sum(layer.multiply_adds(tokens) for layer in decoder.layers) - norms), printed, 9)


def test_maskformers_heads_have_the_size_and_cost_measured_on_the_original():
    pytest.importorskip("transformers")
    row = row_of(MASKFORMER)
    assert costs(row) == MASKFORMER_COSTS
    with torch.device("meta"):
        decoder = create_decoder(row.decoder, row.dim, row.classes)
    transformer = (decoder.transformer, decoder.class_predictor, decoder.mask_embedder)
    assert round(parameters(decoder.pixel_decoder) / 1e6, 3) == 6.246
    assert round(sum(map(parameters, transformer)) / 1e6, 3) == 10.128
    # The original counts the norms of the levels to the Swin, gives masks after each of 6 layers and no class scores.
    N, K, W = row.grid[0] * row.grid[1], 100, 256
    level_norms = sum(5 * (N >> 2 * level) * dim for level, dim in enumerate(row.dim))
    auxiliary = 5 * (K * W * (row.classes + 1) + 3 * K * W * W + K * N * W)
    group_norms = 5 * W * (2 * (N + N // 4 + N // 16) + N // 64)  # were counted like layer norms
    in_training = costs(row)[1] - level_norms - K * N * row.classes + auxiliary
    assert (round(in_training / 1e9, 1), round((in_training + group_norms) / 1e9, 1)) == (44.1, 44.2)


def test_the_linear_decoder_counts_one_product():
    assert decoder_costs("linear", 64, 5, (3, 4)) == (64 * 5 + 5, 12 * 64 * 5)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_rounds_to_the_printed_digits_except_for_the_known_slip(row):
    size, flops = costs(row)
    slip = row.config == "cityscapes/depict_sa_vit_l"
    assert rounds_to(flops, row.flops, 9) in (True, None)
    assert rounds_to(size, row.parameters, 6) in ((False,) if slip else (True, None))


def test_the_slip_is_the_size_of_one_layer():
    row = row_of("cityscapes/depict_sa_vit_l")
    one_layer, _ = decoder_costs(row.decoder, row.dim, row.classes, row.grid, **row.options | {"layers": 1})
    assert rounds_to(one_layer, row.parameters, 6) is True


@pytest.mark.parametrize("config", MEASURED)
def test_costs_are_those_measured_on_the_released_code(config):
    size, flops = costs(row_of(config))
    assert (round(size / 1e6, 3), round(flops / 1e9, 3)) == MEASURED[config]


@pytest.mark.parametrize("config", ABLATION)
def test_mixtures_of_the_ablation_have_the_measured_size(config):
    assert round(costs(row_of(config))[0] / 1e6, 3) == ABLATION[config]


def test_encoder_costs_are_counted_on_meta_tensors():
    with torch.device("meta"):
        encoder = create_encoder("vit_tiny_patch16_224", (32, 32), dim=64, depth=1)
    tokens, dim = 5, 64
    block = 12 * tokens * dim**2 + 2 * tokens**2 * dim + 2 * 5 * tokens * dim
    assert encoder_multiply_adds(encoder, (32, 32)) == 4 * 16 * 16 * 3 * dim + block + 5 * tokens * dim
    assert parameters(encoder) == sum(p.numel() for p in encoder.parameters())
