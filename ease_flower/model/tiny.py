"""The backbone ``tiny``: a small CLIP that this package pretrains on drawn scenes, once.

No file to ship and nothing to download. Its public scenes leave out some shapes and colours
(`ease_flower.data.scenes`), so that a client has something only it can teach. The weights are
kept under the user's cache directory, behind a file lock, keyed by the recipe below.
"""

import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np
import open_clip
import torch
from PIL.Image import Image
from torch import Tensor

from ease_flower.data.scenes import VOCABULARY, scene_pairs
from ease_flower.data.tokens import WordTokenizer
from ease_flower.model.losses import info_nce
from ease_flower.model.towers import DualEncoder
from ease_flower.model.weights import made_once
from ease_flower.seeding import derive, numpy_generator

IMAGE_SIZE = 48
CONTEXT_LENGTH = 24
RECIPE = {
    "image-size": IMAGE_SIZE,
    "patch": 12,
    "width": 128,
    "image-layers": 4,
    "text-layers": 3,
    "scenes": 6000,
    "batch": 128,
    "steps": 150,
    "learning-rate": 1.5e-3,
    "version": 1,
}
Progress = Callable[[int, int], None]


def preprocess(image: Image) -> Tensor:
    """Scale an image to 48 x 48 and to about [-1, 1]; shape (3, 48, 48)."""
    if image.size != (IMAGE_SIZE, IMAGE_SIZE):
        image = image.resize((IMAGE_SIZE, IMAGE_SIZE))
    pixels = np.asarray(image, dtype=np.float32) / 127.5 - 1.0
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def tokenize(captions: Sequence[str]) -> Tensor:
    """Map captions to word ids of shape (n, 24)."""
    return torch.from_numpy(_tokenizer()(list(captions)))


def _tokenizer() -> WordTokenizer:
    return WordTokenizer(VOCABULARY, CONTEXT_LENGTH)


def new_model() -> open_clip.CLIP:
    """Make an untrained ``tiny`` with seeded weights (1.5 M parameters)."""
    width = int(RECIPE["width"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(0, "tiny"))
        return open_clip.CLIP(
            embed_dim=width,
            vision_cfg={
                "layers": RECIPE["image-layers"],
                "width": width,
                "head_width": 32,
                "patch_size": RECIPE["patch"],
                "image_size": IMAGE_SIZE,
            },
            text_cfg={
                "context_length": CONTEXT_LENGTH,
                "vocab_size": _tokenizer().vocab_size,
                "width": width,
                "heads": 4,
                "layers": RECIPE["text-layers"],
            },
        )


def load_tiny(num_adapted: int, progress: Progress | None = None) -> DualEncoder:
    """Load ``tiny``, pretraining it first if this machine has not done so yet."""
    from ease_flower.model.backbones import from_open_clip

    recipe = json.dumps([RECIPE, VOCABULARY], sort_keys=True)
    name = f"tiny-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    weights = made_once(name, lambda: pretrain(progress).state_dict())
    model = new_model()
    model.load_state_dict(weights, strict=True)
    return from_open_clip(model, "tiny", num_adapted, preprocess, tokenize)


def pretrain(progress: Progress | None = None, steps: int | None = None) -> open_clip.CLIP:
    """Train ``tiny`` on public scenes with InfoNCE, one-cycle AdamW.

    Parameters
    ----------
    progress : callable, optional
        Called with (steps done, steps in all).
    steps : int, optional
        Fewer steps than the recipe's, for tests.
    """
    total = steps or int(RECIPE["steps"])
    pairs = scene_pairs(int(RECIPE["scenes"]), seed=derive(0, "public") % 2**31, palette="public")
    images = torch.stack([preprocess(pairs.image(i)) for i in range(len(pairs))])
    tokens = torch.stack([tokenize(captions) for captions in pairs.captions])  # (n, 5, length)
    rng = numpy_generator(0, "pretrain")
    model = new_model().train()
    rate = float(RECIPE["learning-rate"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=total)
    for step in range(total):
        rows = torch.from_numpy(rng.choice(len(pairs), int(RECIPE["batch"]), replace=False))
        which = torch.from_numpy(rng.integers(tokens.shape[1], size=len(rows)))
        z_v = model.encode_image(images[rows], normalize=True)
        z_t = model.encode_text(tokens[rows, which], normalize=True)
        scale = model.logit_scale.exp().clamp(max=100.0)
        loss = info_nce(z_v, z_t, rows, scale)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress and (step + 1) % 10 == 0:
            progress(step + 1, total)
    return model.eval()
