"""All settings of an experiment, on one page of dataclasses.

The docstrings are the help of the command line. Needs no torch. A value of None is filled in later
by the part that knows it (a decoder its sizes, a data set its recipe), so a saved configuration is
complete.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from depict.config.flags import flag

ENCODERS_OWN = flag("the encoder's own")
DECODERS_OWN = flag("the decoder's own")
RECIPE = flag("the data set's recipe")


@dataclass
class EncoderConfig:
    """The network that turns an image into embeddings: a plain ViT, or a hierarchical encoder."""

    name: Annotated[str, flag(metavar="NAME", alias="--encoder")] = "vit_small_patch16_384"
    """timm name of any plain ViT, or of any model with feature maps (EfficientNet, ConvNeXt, Swin, ResNet, ...)."""
    pretrained: Annotated[bool | str, flag(metavar="True|False|FILE")] = True
    """Weights: True loads timm's, FILE a .safetensors or .pth file, False starts from random ones."""
    drop_path: float = 0.0
    """Stochastic depth, increasing linearly from 0 at the first block to this value at the last."""
    freeze: Annotated[bool, flag(alias="--freeze-encoder")] = False
    """Train only the decoder."""
    patch_size: Annotated[int | None, ENCODERS_OWN] = None
    """Patch size, for training from random weights."""
    dim: Annotated[int | None, ENCODERS_OWN] = None
    """Embedding dimension, with 64 per head, for training from random weights."""
    depth: Annotated[int | None, ENCODERS_OWN] = None
    """Number of blocks, for training from random weights."""
    blocks: Annotated[tuple[int, ...] | None, flag("the last one, with its norm")] = None
    """Plain ViT: use the outputs of these blocks, counted from 0, such as 2 5 8 11."""


@dataclass
class NeckConfig:
    """The linear maps that bring the levels of an encoder to one grid."""

    dim: Annotated[int | None, flag("256; none for a plain ViT on its patch grid")] = None
    """Dimension of the tokens."""
    stem: bool = False
    """Add detail at stride 4 by a shallow convolutional stem, for plain ViTs."""


@dataclass
class DecoderConfig:
    """The head that turns embeddings into masks."""

    name: Annotated[str, flag("all of the paper's", "NAME", "--decoder")] = "depict_sa"
    """depict_sa, depict_ca, depict_us, depict_mask, cbt, maskformer, segmenter, linear or ablation."""
    layers: Annotated[int | None, DECODERS_OWN] = None
    """Number of layers (depict_ca, depict_mask: of MSSA layers)."""
    heads: Annotated[int | None, DECODERS_OWN] = None
    """Attention heads per layer."""
    head_dim: Annotated[int | None, DECODERS_OWN] = None
    """Dimension of each head's subspace."""
    operator: Annotated[Literal["softmax", "exact"] | None, DECODERS_OWN] = None
    """MSSA and MSCA: softmax as published, or the exact gradient of the coding rate, whose cost is linear."""
    cross_layers: Annotated[int | None, DECODERS_OWN] = None
    """depict_ca, depict_mask: number of MSCA layers."""
    cross_heads: Annotated[int | None, DECODERS_OWN] = None
    """depict_ca, depict_mask: heads per MSCA layer."""
    cross_head_dim: Annotated[int | None, DECODERS_OWN] = None
    """depict_ca, depict_mask: dimension of each MSCA head's subspace."""
    queries: Annotated[int | None, flag("100; depict_mask with more than 50 classes: two per class")] = None
    """depict_mask, maskformer: number of masks, each with a class, that an image may have."""
    masked_attention: Annotated[bool | None, flag("False")] = None
    """depict_mask: a query attends only where its mask is positive so far."""
    deep_supervision: Annotated[bool | None, flag("True")] = None
    """depict_mask, maskformer: the loss applies to the masks of every step."""
    segments: Annotated[Literal["classes", "components"] | None, flag("classes")] = None
    """depict_mask, maskformer: what a query learns, all pixels of a class or a connected component of them."""
    matching: Annotated[Literal["maskformer", "mask2former"] | None, flag("mask2former; maskformer: its own")] = None
    """depict_mask, maskformer: which paper's loss to use for matched queries."""
    attention: Annotated[str | None, flag("mssa", "NAME")] = None
    """ablation: mssa, mhsa or none."""
    feedforward: Annotated[str | None, flag("ista", "NAME")] = None
    """ablation: ista, mlp or none."""
    width: Annotated[int | None, flag("the encoder's; maskformer 256")] = None
    """segmenter, maskformer: embedding dimension."""
    dropout: Annotated[float | None, DECODERS_OWN] = None
    """Dropout inside the decoder."""
    head: Annotated[Literal["cosine", "linear", "subspaces"] | None, DECODERS_OWN] = None
    """How patches become masks: cosine with a norm over the classes (published), a dot product, or a subspace per
    class."""
    directions: Annotated[int | None, flag("4")] = None
    """head subspaces: directions of each class."""
    logit_gain: Annotated[float | None, flag("1; with a frozen encoder and up to 16 classes 4")] = None
    """head cosine: initial gain of the norm over the classes."""
    step_size: Annotated[float | None, flag("exact -0.1; depict_mask 0.1; otherwise drawn from N(0, 1)")] = None
    """Initial value of all MSSA and MSCA step sizes."""

    def options(self) -> dict[str, Any]:
        """The options that are set, as keyword arguments for the decoder."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "name"}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class DataConfig:
    """The images and masks."""

    name: Annotated[str | None, flag("the config's", "NAME", "--data")] = None
    """Data set: scenes, folder, coco, ade20k, cityscapes, pascal_context, pascal_context_59 or camvid."""
    root: Annotated[Path | None, flag("the config's", "DIR", "--root")] = None
    """Folder of the data set (scenes are generated and need none)."""
    train_split: Literal["train", "trainval"] = "train"
    """trainval also trains on the validation images, for a test submission; the validation score then means nothing."""
    short_edge: Annotated[int | None, RECIPE] = None
    """Images are resized into a box with this short edge, before the random scale."""
    max_aspect: Annotated[float | None, RECIPE] = None
    """Long edge of that box divided by its short edge."""
    scale_range: Annotated[tuple[float, float], flag(metavar="MIN MAX")] = (0.5, 2.0)
    """Range of the random scale of training images."""
    color_jitter: bool = True
    """Distort brightness, contrast, saturation and hue of training images."""
    flip: bool = True
    """Mirror half of the training images. Turn it off if left and right are different classes."""
    every: int = 1
    """Train on every n-th image only."""
    holdout: Annotated[float | None, flag("the data set's validation images")] = None
    """Validate on this fraction of the training images instead, to choose settings."""
    limit: Annotated[int | None, flag("all")] = None
    """Train on this many images, drawn with the seed."""
    workers: int = 2
    """Processes that read and augment images."""


@dataclass
class TrainConfig:
    """How the model is trained."""

    epochs: Annotated[int | None, RECIPE] = None
    """Passes over the training images. More of them extend a finished run, at the rates of the longer schedule."""
    batch: Annotated[int | None, RECIPE] = None
    """Images per step, over all processes."""
    lr: Annotated[float | None, flag("2e-4; frozen 1e-3, depict_ca 3e-3, us, mask, linear 1e-2; sgd the recipe")] = None
    """Peak learning rate."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    """sgd is the published choice, with Nesterov momentum 0.9."""
    weight_decay: float = 0.0
    """Weight decay of matrices. Norms, biases, embeddings, tokens and step sizes are not decayed."""
    warmup: int = 0
    """Steps of linear warm-up."""
    layer_decay: float = 1.0
    """Learning rate of each encoder block divided by that of the next block."""
    clip_grad: Annotated[float | None, flag("no clipping")] = None
    """Largest norm of the gradient."""
    grad_accum: int = 1
    """Split each batch into this many parts to save memory. The cross-entropy does not change."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Mixed precision. auto is bf16 on GPUs that support it, fp32 elsewhere."""
    checkpointing: bool = False
    """Recompute the encoder's activations in the backward pass to save memory."""
    compile: bool = False
    """Compile the model with torch.compile."""
    ema: Annotated[float | None, flag("off")] = None
    """Decay of an exponential moving average of the weights, which is evaluated and kept."""
    loss: Literal["ce", "ce+dice", "ce+lovasz"] = "ce"
    """Cross-entropy, alone or with soft Dice or Lovász-softmax."""
    loss_every: int = 1
    """Compute the loss on every n-th row and column of pixels only, which is faster."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced weights each class by the median class frequency divided by its own."""
    init: Annotated[str | None, flag("the encoder's weights", "RUN")] = None
    """Start from the weights of this run. Its encoder, decoder and image size are the defaults; classes may differ."""
    start: Literal["random", "data"] = "random"
    """linear, depict_us on a frozen encoder: start the classes at random, or by discriminant analysis of the images."""
    cache_features: bool = False
    """Run the frozen encoder once per image, and train and validate the decoder on its cached features."""
    cache_crop: Annotated[float | None, flag("whole images")] = None
    """With --cache-features: train on random crops of this fraction of the height and width."""
    validate_every: Annotated[int | None, flag("an eighth of the epochs")] = None
    """Epochs between validations. The last epoch is always validated."""
    save_every: Annotated[int | None, flag("one epoch")] = None
    """Steps between saves of the state to resume from."""
    patience: Annotated[int | None, flag("never")] = None
    """Stop after this many validations without a better mIoU."""
    tracker: Literal["none", "tensorboard", "wandb"] = "none"
    """Also log to TensorBoard or Weights & Biases, if installed."""
    device: Annotated[str | None, flag("the best device", "DEVICE")] = None
    """cpu, cuda or mps."""


@dataclass
class Config:
    """An experiment."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: Annotated[TrainConfig, arg(name="")] = field(default_factory=TrainConfig)
    image_size: Annotated[int | tuple[int, int] | None, flag("the data set's crop", "INT [INT]")] = None
    """Training crop and inference window in pixels: a side, or height and width."""
    stride: Annotated[int | None, flag("the patch of a plain ViT, 8 for others")] = None
    """Cell of the decoder's grid and its masks in pixels, such as 4, 8, 16 or 32."""
    seed: int = 0
    """Seed of the weights, the order of the images and the augmentation."""
    neck: NeckConfig = field(default_factory=NeckConfig)
