"""Everything a run is made of, on one page of dataclasses.

Free of torch: the command line builds its help from this file. Values left at None are filled in by the part that knows
them (a decoder its sizes, a data set its recipe), so a saved configuration is always complete.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg


@dataclass
class EncoderConfig:
    """The ViT that turns an image into embeddings Z0."""

    name: Annotated[str, arg(aliases=["--encoder"])] = "vit_small_patch16_384"
    """Any plain ViT of timm, by its timm name."""
    pretrained: bool | str = True
    """True: weights from timm's hub; a path: a local .safetensors or .pth file; False: random weights."""
    drop_path: float = 0.0
    """Stochastic depth, rising linearly from 0 at the first block to this value at the last."""
    freeze: Annotated[bool, arg(aliases=["--freeze-encoder"])] = False
    """Keep the encoder's weights as they are and train the decoder only."""
    patch_size: int | None = None
    """Another patch size than the name says; for training from random weights."""
    dim: int | None = None
    """Another embedding dimension, with heads of 64; for training from random weights."""
    depth: int | None = None
    """Another number of blocks; for training from random weights."""


@dataclass
class DecoderConfig:
    """The head that turns embeddings into masks. Options left at None are the decoder's own defaults."""

    name: Annotated[str, arg(aliases=["--decoder"])] = "depict_sa"
    """depict_sa, depict_ca, segmenter, linear or ablation."""
    layers: int | None = None
    """Number of layers (of MSSA layers for depict_ca)."""
    heads: int | None = None
    """Attention heads per layer."""
    head_dim: int | None = None
    """Dimension of each head's subspace."""
    cross_layers: int | None = None
    """depict_ca: number of MSCA layers."""
    cross_heads: int | None = None
    """depict_ca: heads per MSCA layer."""
    cross_head_dim: int | None = None
    """depict_ca: dimension of each MSCA head's subspace."""
    attention: str | None = None
    """ablation: mssa, mhsa or none."""
    feedforward: str | None = None
    """ablation: ista, mlp or none."""
    width: int | None = None
    """segmenter: dimension of its embeddings; by default the encoder's."""
    dropout: float | None = None
    """Dropout inside the decoder."""
    logit_gain: float | None = None
    """Gain of the norm over the classes at the start; 1 as released, but 4 for up to 16 classes on a frozen encoder."""
    step_size: float | None = None
    """MSSA and MSCA: all step sizes at the start; by default drawn from N(0, 1), as released."""

    def options(self) -> dict[str, Any]:
        """What was set, as keyword arguments for the decoder."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "name"}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class DataConfig:
    """The images and masks."""

    name: Annotated[str | None, arg(aliases=["--data"])] = None
    """scenes, folder, ade20k, cityscapes, pascal_context, pascal_context_59 or camvid."""
    root: Annotated[Path | None, arg(aliases=["--root"])] = None
    """Where the data set lies (`scenes` is generated and needs none)."""
    short_edge: int | None = None
    """Short edge of the box that images are resized into, before the random factor."""
    max_aspect: float | None = None
    """Long edge of that box over its short edge."""
    scale_range: tuple[float, float] = (0.5, 2.0)
    """Smallest and largest random factor on the size of training images."""
    color_jitter: bool = True
    """Distort brightness, contrast, saturation and hue of training images."""
    flip: bool = True
    """Mirror every second training image; not where left and right are different classes."""
    limit: int | None = None
    """Train on so many images only, drawn by the seed."""
    holdout: float | None = None
    """Validate on this last part of the training images, and train on the others: to choose settings by."""
    workers: int = 2
    """Processes that read and augment images."""


@dataclass
class TrainConfig:
    """How the model is trained. Epochs, batch and rate left at None are the data set's published recipe."""

    epochs: int | None = None
    """Passes over the training images."""
    batch: int | None = None
    """Images per step, over all processes together."""
    lr: float | None = None
    """Learning rate at the start (after warm-up); by default the recipe's for sgd; for adamw 2e-4, with a frozen
    encoder 1e-3 (depict_ca 3e-3, linear 1e-2)."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    """sgd: Nesterov momentum 0.9, as published. adamw: the modern choice."""
    weight_decay: float = 0.0
    """Decay of matrices; norms, biases, embeddings, tokens and step sizes are never decayed."""
    warmup: int = 0
    """Steps in which the rate rises linearly to its start."""
    layer_decay: float = 1.0
    """Rate of each encoder block over that of the block after it."""
    clip_grad: float | None = None
    """Largest norm of the gradient."""
    grad_accum: int = 1
    """Pieces that a step is computed in, one after the other, to save memory; cross-entropy stays the same."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Mixed precision; auto is bf16 on GPUs that have it, fp32 elsewhere."""
    checkpointing: bool = False
    """Recompute the encoder's activations in the backward pass instead of keeping them."""
    compile: bool = False
    """Compile the model with torch.compile."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then what is evaluated and kept."""
    loss: Literal["ce", "ce+dice", "ce+lovasz"] = "ce"
    """Cross-entropy, alone or with soft Dice or Lovász-softmax added."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: weigh each class by the median class frequency over its own."""
    cache_features: bool = False
    """Run a frozen encoder once per image and mirror image, and train the decoder from memory."""
    cache_crop: float | None = None
    """With cached features: train on a random part of each image, this share of its height and width."""
    validate_every: int | None = None
    """Epochs between validations; by default an eighth of the training. The last epoch is always validated."""
    save_every: int | None = None
    """Steps between saves of the state to resume from; by default an epoch."""
    patience: int | None = None
    """Stop after so many validations without a better mIoU."""
    tracker: Literal["none", "tensorboard", "wandb"] = "none"
    """Log to TensorBoard or Weights & Biases too, if installed."""
    device: str | None = None
    """cpu, cuda or mps; by default the best there is."""


@dataclass
class Config:
    """A whole experiment."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: Annotated[TrainConfig, arg(name="")] = field(default_factory=TrainConfig)
    image_size: int | tuple[int, int] | None = None
    """Crop that the model is trained on and window that it is applied in: side, or height and width; by default the
    data set's published crop."""
    seed: int = 0
    """Seed of the weights, the order of images and the augmentation."""
