"""MaskFormer's heads from transformers: their masks, their loss, and that nothing else needs transformers."""

import subprocess
import sys

import pytest
import torch

import depict
from depict import UserError, create_decoder
from depict.config.schema import Config, DataConfig, DecoderConfig, EncoderConfig, TrainConfig
from depict.decoders.mask_classification import semantic_scores
from depict.decoders.matching import TERMS, Queries, matching_loss
from depict.training.loop import Trainer, train
from depict.training.stopping import InterruptedTraining
from support.trainings import assert_same_run

DIMS, STRIDES = (24, 40, 48), (4, 8, 32)
SMALL = {"width": 32, "heads": 4, "layers": 2, "queries": 7}
needs_transformers = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("transformers"), reason="transformers is not installed"
)


def build(**options):
    return create_decoder("maskformer", DIMS, 5, **SMALL | options)


def levels(batch=2, height=64, width=96):
    return [torch.randn(batch, height // each, width // each, dim) for dim, each in zip(DIMS, STRIDES, strict=True)]


@needs_transformers
def test_levels_become_scores_on_the_finest_grid():
    assert build().eval()(levels(), (16, 24)).shape == (2, 5, 16, 24)


@needs_transformers
def test_masks_are_resized_to_a_grid_that_is_finer_than_every_level():
    assert build().eval()(levels(), (32, 48)).shape == (2, 5, 32, 48)


@needs_transformers
def test_in_training_mode_every_layer_is_returned_and_the_last_gives_the_result():
    decoder, inputs = build(dropout=0.0), levels()
    queries = decoder.train()(inputs, (16, 24))
    assert queries.masks.shape == (2, 2, 7, 16, 24)
    assert torch.allclose(
        decoder.eval()(inputs, (16, 24)), semantic_scores(queries.masks[-1], queries.classes[-1]), atol=1e-4
    )
    assert len(build(deep_supervision=False).train()(inputs, (16, 24)).masks) == 1


@needs_transformers
def test_every_supervised_state_is_normalized_as_the_last_one_is():
    decoder = build(dropout=0.0).eval()
    features = torch.randn(1, DIMS[-1], 4, 6)
    with torch.no_grad():
        torch.nn.init.uniform_(decoder.transformer.decoder.layernorm.weight)
        every = decoder.states(features, every_layer=True)
        assert torch.allclose(every[-1], decoder.states(features, every_layer=False)[0], atol=1e-5)
        weight = decoder.transformer.decoder.layernorm.weight
        assert torch.allclose((every / weight).mean(-1), torch.zeros(()), atol=1e-4)
        assert torch.allclose((every / weight).var(-1, correction=0), torch.ones(()), atol=1e-2)


@needs_transformers
def test_masks_start_undecided():
    torch.manual_seed(0)
    decoder = create_decoder("maskformer", DIMS, 5).train()
    queries = decoder(levels(batch=1), (16, 24))
    assert queries.masks.std() < 2 and queries.classes.std() < 1


@needs_transformers
def test_the_loss_reaches_every_parameter():
    decoder = build().train()
    labels = torch.randint(5, (2, 64, 96), dtype=torch.uint8)
    decoder.loss(decoder(levels(), (16, 24)), labels, (32, 32)).backward()
    without = [name for name, p in decoder.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # With all queries at 0 before the first layer, their self-attention there is that of a constant.
    assert all("layers.0.self_attn" in name or "k_proj.bias" in name for name in without), without


@needs_transformers
def test_one_image_has_the_loss_of_transformers():
    from transformers.models.maskformer.modeling_maskformer import MaskFormerHungarianMatcher, MaskFormerLoss

    weights = {"loss_cross_entropy": 1.0, "loss_mask": 20.0, "loss_dice": 1.0}
    theirs = MaskFormerLoss(3, MaskFormerHungarianMatcher(1.0, 20.0, 1.0), weights, 0.1)
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        masks = 3 * torch.randn(2, 1, 6, 8, 9, generator=g)
        classes = 2 * torch.randn(2, 1, 6, 4, generator=g)
        labels = torch.randint(3, (1, 8, 9), generator=g, dtype=torch.uint8)
        present = labels.unique()
        expected = 0.0
        for step in range(2):
            targets = torch.stack([labels[0] == each for each in present]).float()
            found = theirs(masks[step], classes[step], [targets], [present.long()])
            expected += sum(weights[name] * value for name, value in found.items())
        ours = matching_loss(Queries(masks, classes), labels, (1, 1), TERMS["maskformer"])
        assert ours.item() == pytest.approx(float(expected), rel=1e-5)


@needs_transformers
@pytest.mark.parametrize(
    ("dims", "options", "message"),
    [
        (DIMS[:1], {}, "maskformer needs an encoder with several levels"),
        (DIMS, {"width": 40}, "the width 40 of maskformer must be a multiple of 32"),
        (DIMS, {"heads": 5}, "the width 32 of maskformer must be a multiple of 32 and of its 5 heads"),
        (DIMS, {"queries": 0}, "queries must be at least 1"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(dims, options, message):
    with pytest.raises(UserError, match=message):
        create_decoder("maskformer", dims, 5, **SMALL | options)


def test_without_transformers_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.models.maskformer", None)
    with pytest.raises(UserError, match="'maskformer' needs transformers: pip install transformers"):
        build()


@pytest.mark.slow
def test_nothing_else_imports_transformers():
    code = (
        "import sys, torch, depict; from depict.decoders import DECODERS, decoder_options; "
        "from depict.commands import evaluate, segment, train, export, import_; "
        "list(map(decoder_options, DECODERS)); "
        "depict.create_model('depict_mask', 'vit_tiny_patch16_224', 3, 32)(torch.zeros(1, 3, 32, 32)); "
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def config(root, **train):
    """Two epochs of three steps on the folder `root`, on a small hierarchical encoder."""
    return Config(
        encoder=EncoderConfig("test_efficientnet", False, freeze=train.get("cache_features", False)),
        decoder=DecoderConfig("maskformer", **SMALL),
        data=DataConfig("folder", root, short_edge=64, max_aspect=2, workers=0),
        train=TrainConfig(**{"epochs": 2, "batch": 4, "lr": 1e-3, "device": "cpu"} | train),
        image_size=64,
    )


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    from support.layouts import rectangles

    return rectangles(tmp_path_factory.mktemp("pictures"))


@pytest.mark.slow
@needs_transformers
def test_a_stopped_training_resumes_and_ends_with_the_same_weights(pictures, tmp_path, monkeypatch):
    train(config(pictures), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(InterruptedTraining):
        patch.setattr(Trainer, "_stop_requested", lambda trainer: trainer.progress.iteration == 4)
        train(config(pictures), tmp_path / "stopped")
    train(config(pictures), tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    model = depict.load(tmp_path / "whole")
    assert model.neck is None
    assert model.predict(torch.zeros(50, 70, 3, dtype=torch.uint8).numpy()).labels.shape == (50, 70)


@needs_transformers
def test_it_trains_from_cached_levels(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("DEPICT_CACHE", str(tmp_path / "cache"))
    train(config(pictures, cache_features=True, epochs=1), tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").is_file()


@needs_transformers
@pytest.mark.slow
def test_it_is_exported_for_any_size(tmp_path):
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    from depict.interchange.onnx import export

    model = depict.create_model("maskformer", "test_efficientnet", num_classes=5, image_size=64, **SMALL)
    differences = export(model, tmp_path / "model.onnx", dynamic=True)
    assert len({shape[2:] for shape in differences}) >= 4


@needs_transformers
def test_a_neck_is_refused(pictures, tmp_path):
    settings = config(pictures)
    settings.neck.dim = 16
    with pytest.raises(UserError, match="has masks of stride 4 and a neck of its own: omit --stride and --neck"):
        train(settings, tmp_path)


@needs_transformers
@pytest.mark.slow
def test_a_picture_of_4096_pixels_and_150_classes_needs_little_memory():
    code = """
import resource, numpy as np, torch, depict
torch.set_num_threads(1)
options = {"width": 32, "heads": 4, "layers": 1, "queries": 7}
model = depict.create_model("maskformer", "test_efficientnet", 150, image_size=256, pretrained=False, **options)
peaks = []
for side in (256, 4096):
    model.predict(np.zeros((side, side, 3), np.uint8))
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print((peaks[1] - peaks[0]) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 1300  # MB, of 10 GB for 150 x 4096 x 4096; the masks of all windows take 890
