"""What a caption finds before, after, and by the retrained model, as small pictures.

A deployed server has no client's pairs, so there only public test pairs are shown. In
simulation all pairs are on this machine, and the leaver's are shown too.
"""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ease_flower.config import Config
from ease_flower.data import Pairs, concat
from ease_flower.data.federation import client_data, test_pairs
from ease_flower.model.adapters import AdapterSpace, set_adapters
from ease_flower.model.caching import StemCache, compute_stems, embed_images, embed_texts
from ease_flower.model.towers import DualEncoder
from ease_flower.unlearning.requests import ForgetRequest, forget_rows

SHOWN, TOP, THUMB = 3, 5, 96
DISTRACTORS = 200  # public images a shown query is searched among, besides the client's own
Theta = NDArray[np.float32]


def retrieval_pictures(
    config: Config,
    encoder: DualEncoder,
    space: AdapterSpace,
    models: Mapping[str, Theta],
    num_simulated: int,
) -> tuple[list[dict[str, Any]], str]:
    """Search some captions under every model.

    Parameters
    ----------
    models : mapping of str to ndarray
        theta of ``before``, ``unlearned`` and perhaps ``retrain``.
    num_simulated : int
        Number of simulated clients; 0 on a deployed server.

    Returns
    -------
    list of dict, str
        Rows for the report, and why some kind is missing (empty if none is).
    """
    sets: dict[str, tuple[Pairs, int]] = {}
    why = ""
    request = ForgetRequest.of(config)
    for index in range(num_simulated):
        held = client_data(config, index, num_simulated)
        named = forget_rows(request, config, f"site-{index}", held.train)
        kept = np.setdiff1d(np.arange(len(held.train)), named)
        for kind, mine in (("forget", named), ("retain", kept)):
            if len(mine) >= SHOWN and kind not in sets:
                own = held.train.subset(mine)
                far = held.distractors
                near = far.subset(range(min(DISTRACTORS, len(far))))
                sets[kind] = concat(own, near), len(own)
    if not num_simulated:
        why = "Only public test pairs are shown: the pairs of clients never reach the server."
    if not sets:
        public = test_pairs(config)
        sets["test"] = public, len(public)
    rows: list[dict[str, Any]] = []
    for kind, (pairs, num_own) in sets.items():
        rows += _rows(kind, pairs, num_own, encoder, space, models)
    return rows, why


def _rows(
    kind: str,
    pairs: Pairs,
    num_own: int,
    encoder: DualEncoder,
    space: AdapterSpace,
    models: Mapping[str, Theta],
) -> list[dict[str, Any]]:
    """Take the captions whose rank the models disagree on most: they show what changed."""
    stems = compute_stems(encoder, pairs)
    captions = stems.first[:num_own]
    scores = {n: _scores(encoder, space, theta, stems, captions) for n, theta in models.items()}
    own = torch.arange(num_own)
    ranks = {n: (s > s[own, own][:, None]).sum(1) for n, s in scores.items()}
    last = ranks.get("retrain", ranks["unlearned"])
    # Found before and not by the retrained model: what forgetting should look like.
    change = (last - ranks["before"]) * (ranks["before"] == 0)
    picked = torch.argsort(change, descending=True, stable=True)[:SHOWN]
    if kind != "forget":  # an ordinary sample, evenly spaced
        picked = torch.linspace(0, num_own - 1, SHOWN).long()
    return [
        {
            "kind": kind,
            "query": pairs.captions[i][0],
            "truth": _thumb(pairs, i),
            **{
                name: [
                    {"src": _thumb(pairs, j), "hit": j == i}
                    for j in torch.topk(score[i], min(TOP, score.shape[1])).indices.tolist()
                ]
                for name, score in scores.items()
            },
        }
        for i in picked.tolist()
    ]


@torch.inference_mode()
def _scores(
    encoder: DualEncoder,
    space: AdapterSpace,
    theta: Theta,
    stems: StemCache,
    captions: torch.Tensor,
) -> torch.Tensor:
    set_adapters(encoder, space.unflatten(theta))
    images = torch.cat(
        [embed_images(encoder, stems, rows) for rows in torch.arange(len(stems)).split(256)]
    )
    texts = torch.cat([embed_texts(encoder, stems, rows) for rows in captions.split(256)])
    return (texts @ images.T).cpu()


def _thumb(pairs: Pairs, index: int) -> str:
    image = pairs.image(index).copy()
    image.thumbnail((THUMB, THUMB))
    buffer = io.BytesIO()
    if image.width < THUMB:  # drawn scenes: few colours, small as PNG
        image.save(buffer, format="PNG", optimize=True)
        kind = "png"
    else:
        image.save(buffer, format="JPEG", quality=70)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
