"""Official checkpoints become our model: same logits, nothing lost, nothing run."""

import pickle
from pathlib import Path

import pytest
import torch

import depict
from depict.errors import UserError
from depict.interchange.architecture import encoder_config
from depict.interchange.checkpoint import import_checkpoint
from depict.interchange.variant import Variant
from depict.runs import save
from support.official_model import CLASSES, DIM, Official, official_state, variant, write_checkpoint

KINDS = ("depict_sa", "depict_ca", "cbt", "segmenter", "linear")
HEADS = {"depict_sa": 3, "depict_ca": 3, "cbt": 3, "segmenter": 1, "linear": 1}
YAML = {kind: variant(3 if kind.startswith("depict") else None) for kind in KINDS}


def imported(tmp_path, state, yaml, **options):
    return import_checkpoint(write_checkpoint(tmp_path, state, yaml), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(64, 64), (48, 80), (50, 33), (32, 128)])
def test_logits_are_those_of_the_official_model_at_any_size(tmp_path, kind, size):
    state = official_state(kind)
    result = imported(tmp_path, state, YAML[kind])
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        ours = result.model(images)
    expected = Official(state, HEADS[kind]).logits(images)
    assert ours.shape == expected.shape
    assert (ours - expected).abs().max() < 1e-3
    assert expected.std() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_but_the_pretraining_head_is_used(tmp_path, kind):
    result = imported(tmp_path, official_state(kind), YAML[kind])
    assert result.unknown == []
    assert result.pretraining_head == ["encoder.head.weight", "encoder.head.bias"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_saved_from_it_gives_the_same_logits(tmp_path, kind):
    model = imported(tmp_path, official_state(kind), YAML[kind]).model
    save(model, tmp_path / "run")
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(depict.load(tmp_path / "run")(images), model(images))


@pytest.mark.parametrize("width", [128, 32])
def test_a_segmenter_decoder_may_be_wider_or_narrower_than_its_encoder(tmp_path, width):
    state = official_state("segmenter", width=width)
    model = imported(tmp_path, state, None, heads=2).model
    images = torch.randn(2, 3, 48, 80)
    with torch.no_grad():
        ours = model(images)
    expected = Official(state, 2).logits(images)
    assert (ours - expected).abs().max() < 1e-3
    assert (model.encoder.dim, model.decoder.dim, model.config.decoder.width) == (DIM, width, width)
    save(model, tmp_path / "run")
    with torch.no_grad():
        assert torch.equal(depict.load(tmp_path / "run")(images), ours)


@pytest.mark.parametrize("kind", ["depict_sa", "depict_ca", "linear"])
def test_another_decoder_that_is_wider_than_its_encoder_is_refused(tmp_path, kind):
    with pytest.raises(UserError, match="the decoder has dimension 128, the encoder 64: only Segmenter"):
        imported(tmp_path, official_state(kind, width=128), None, heads=3)


def test_a_distilled_deit_is_recognized_by_its_token(tmp_path):
    state = official_state("linear", distilled=True)
    result = imported(tmp_path, state, None)
    images = torch.randn(1, 3, 80, 48)
    with torch.no_grad():
        difference = result.model(images) - Official(state, 1).logits(images)
    assert difference.abs().max() < 1e-3
    assert result.model.encoder.name.startswith("deit_tiny_distilled")
    assert result.model.mean == (0.485, 0.456, 0.406)
    assert "encoder.head_dist.weight" in result.pretraining_head


def test_cbt_says_by_its_step_sizes_how_many_heads_it_has(tmp_path):
    options = imported(tmp_path, official_state("cbt"), None).model.config.decoder
    assert (options.name, options.layers, options.heads, options.head_dim) == ("cbt", 2, 3, 4)


@pytest.mark.parametrize("kind", ["depict_sa", "depict_ca", "cbt", "segmenter_mask", "segmenter_linear"])
def test_decoders_give_the_numbers_of_the_reference_vectors(tmp_path, shared, kind):
    vectors = torch.load(shared / "reference" / f"{kind}.pt", weights_only=True)
    dim = vectors["x"].shape[-1]
    state = official_state("linear", dim=dim)
    state = {name: tensor for name, tensor in state.items() if name.startswith("encoder.")}
    state |= {f"decoder.{name}": tensor for name, tensor in vectors["state_dict"].items()}
    yaml = "net_kwargs: {decoder: {n_heads: 3}}" if kind.startswith("depict") else None
    model = imported(tmp_path, state, yaml).model
    height, width = (int(side) for side in vectors["im_size"])
    with torch.no_grad():
        masks = model.decoder(vectors["x"], (height // 16, width // 16))
    tolerance = 4e-4 if kind == "cbt" else 2e-4  # CBT's masks in float32 are up to 1.3e-4 away from those in float64
    assert (masks - vectors["masks"]).abs().max() < tolerance


@pytest.mark.parametrize(
    ("dim", "depth", "patch", "name"),
    [
        (192, 12, 16, "vit_tiny_patch16_384"),
        (384, 12, 16, "vit_small_patch16_384"),
        (384, 12, 32, "vit_small_patch32_384"),
        (768, 12, 16, "vit_base_patch16_384"),
        (1024, 24, 16, "vit_large_patch16_384"),
    ],
)
def test_encoders_of_the_paper_get_their_names(dim, depth, patch, name):
    shapes = {"encoder.patch_embed.proj.weight": (dim, 3, patch, patch), "encoder.pos_embed": (1, 1 + 16, dim)}
    shapes |= {f"encoder.blocks.{index}.norm1.weight": (dim,) for index in range(depth)}
    state = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    config, size = encoder_config(state, Variant({}, Path("variant.yml")))
    assert (config.name, config.dim, config.depth, config.patch_size) == (name, None, None, None)
    assert size == (4 * patch, 4 * patch)


def test_sizes_are_read_off_the_tensors_where_there_is_no_yaml(tmp_path):
    model = imported(tmp_path, official_state("depict_ca"), None, heads=3, cross_heads=2).model
    options = model.config.decoder
    assert (options.layers, options.heads, options.head_dim) == (2, 3, 4)
    assert (options.cross_layers, options.cross_heads, options.cross_head_dim) == (3, 2, 3)
    assert model.image_size == (64, 64)
    assert model.encoder.dim == DIM
    assert model.num_classes == CLASSES


def test_heads_must_be_given_where_no_yaml_has_them(tmp_path):
    path = write_checkpoint(tmp_path, official_state("depict_sa"), variant(None))
    with pytest.raises(UserError, match=r"12 bases.*--heads 3"):
        import_checkpoint(path)
    with pytest.raises(UserError, match="12 bases .* cannot be shared by 5 heads"):
        import_checkpoint(path, heads=5)


def test_a_grid_that_is_not_square_takes_its_shape_from_the_yaml(tmp_path):
    state = official_state("linear", grid=(2, 6))
    model = imported(tmp_path, state, variant(None, size="!!python/tuple [32, 96]")).model
    assert model.image_size == (32, 96)
    with pytest.raises(UserError, match="12 positions are not a square grid"):
        imported(tmp_path / "silent", state, None)
    with pytest.raises(UserError, match=r"image_size in .* is \(96, 96\), which does not fit 12 positions"):
        imported(tmp_path / "wrong", state, variant(None, size="96"))


def test_classes_are_those_of_the_data_set_that_the_yaml_names(tmp_path):
    state = official_state("linear")
    generator = torch.Generator().manual_seed(0)
    state["decoder.head.weight"] = torch.randn(19, DIM, generator=generator)
    state["decoder.head.bias"] = torch.zeros(19)
    yaml = variant(classes=19, extra="dataset_kwargs: {dataset: cityscapes, image_size: 1024}")
    model = imported(tmp_path, state, yaml).model
    assert model.classes[:2] == ("road", "sidewalk")
    assert (model.config.data.name, model.config.data.short_edge, model.config.data.max_aspect) == (
        "cityscapes",
        1024,
        2.0,
    )
    other = imported(tmp_path / "other", state, variant(classes=19, extra="dataset_kwargs: {dataset: ade20k}")).model
    assert other.classes[0] == "class 0"
    with pytest.raises(UserError, match="19 classes, 'ade20k' has 150"):
        imported(tmp_path / "requested", state, variant(classes=19), data="ade20k")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("n_cls", 7),
        ("decoder.n_cls", 7),
        ("d_model", 64),
        ("decoder.d_model", 64),
        ("n_layers", 2),
        ("patch_size", 16),
        ("decoder.n_layers", 2),
    ],
)
def test_a_yaml_that_contradicts_the_tensors_is_refused(tmp_path, kind, key, said):
    outer, _, inner = key.rpartition(".")
    for value in (said, said + 1):
        own = f"{inner}: {value}"
        yaml = f"net_kwargs: {{decoder: {{n_heads: 3, {own}}}}}" if outer else f"net_kwargs: {{{own}}}"
        path = write_checkpoint(tmp_path, official_state(kind), yaml)
        if value == said or (kind, key) == ("linear", "decoder.n_layers"):  # a linear decoder has none
            import_checkpoint(path, heads=1)
            continue
        with pytest.raises(UserError) as caught:
            import_checkpoint(path, heads=1)
        assert f"variant.yml' says net_kwargs.{key} = {value}, but in '{path}' it is {said}:" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_tensors_that_the_model_does_not_have_are_named(tmp_path):
    state = official_state("depict_sa") | {"decoder.extra": torch.zeros(3), "other": torch.zeros(1)}
    assert imported(tmp_path, state, variant()).unknown == ["decoder.extra", "other"]


def test_a_tensor_that_is_missing_is_named(tmp_path):
    state = official_state("depict_sa")
    del state["decoder.net.layers.1.norm.bias"]
    with pytest.raises(UserError, match=r"lacks 'decoder.layers.1.norm.bias'"):
        imported(tmp_path, state, variant())


def test_another_number_of_classes_is_named_only_where_it_is_one(tmp_path):
    state = official_state("depict_sa")
    for shape, ending in (((9,), r"not \(7,\)\. It is for 9 classes, the model has 7\."), ((7, 1), r"not \(7,\)\.")):
        state["decoder.mask_norm.weight"] = torch.zeros(shape)
        with pytest.raises(UserError, match=rf"'decoder.mask_norm.weight' has shape .*, {ending}$"):
            imported(tmp_path, state, variant())


def test_a_parameter_under_two_names_is_refused(tmp_path):
    state = official_state("depict_sa") | {"decoder.snorm.weight": torch.zeros(DIM)}
    with pytest.raises(UserError, match=r"'decoder.snorm.weight' a second time"):
        imported(tmp_path, state, variant())


def test_other_checkpoints_are_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"'encoder.patch_embed.proj.weight' is missing"):
        imported(tmp_path, {"weight": torch.zeros(3)}, None)
    state = {name: tensor for name, tensor in official_state("linear").items() if not name.startswith("decoder.")}
    with pytest.raises(UserError, match="no known decoder"):
        imported(tmp_path, state, None)
    state = official_state("linear") | {"encoder.pos_embed": torch.zeros(5)}
    with pytest.raises(UserError, match="'encoder.pos_embed' has shape"):
        imported(tmp_path, state, None)


class Malicious:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


@pytest.mark.parametrize("format", ["torch", "pickle"])
def test_a_checkpoint_that_runs_code_is_refused(tmp_path, format):
    target, path = tmp_path / "run_by_the_pickle", tmp_path / "checkpoint.pth"
    content = {"model": official_state("depict_sa"), "epoch": Malicious(target)}
    if format == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UserError, match="checkpoint.pth' is refused: it holds objects other than tensors") as caught:
        import_checkpoint(path, heads=3)
    assert "weights_only" not in str(caught.value)
    assert not target.exists()
    torch.load(path, weights_only=False) if format == "torch" else pickle.loads(path.read_bytes())
    assert target.exists(), "the file was not malicious: the test proves nothing"


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [exit]", "!!python/name:os.system", "!!python/list [1]"]
)
def test_the_yaml_may_hold_tuples_and_no_other_python_objects(tmp_path, tag):
    with pytest.raises(UserError, match="variant.yml' is not valid YAML"):
        imported(tmp_path, official_state("linear"), variant(size=tag))


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("[1, 2]", "must hold a mapping"),
        ("net_kwargs: {image_size: many}", "image_size must be a whole number"),
        ("net_kwargs: {decoder: {n_heads: true}}", "n_heads must be a whole number"),
        ("net_kwargs: {normalization: vitt}", "Did you mean 'vit'"),
        ("net_kwargs: {n_heads: 4}", "gives the encoder 4 heads"),
        ("net_kwargs: {drop_path_rate: high}", "drop_path_rate must be a number"),
        ("net_kwargs: {decoder: {n_heads: 3}}\ndataset_kwargs: {dataset: 3}", "dataset must be text"),
        ("a: [" * 3000, "nested too deeply"),
    ],
)
def test_a_wrong_yaml_is_refused_in_one_line(tmp_path, yaml, message):
    with pytest.raises(UserError, match=message) as raised:
        imported(tmp_path, official_state("depict_sa"), yaml)
    assert "\n" not in str(raised.value)
