"""Image-text retrieval: ranks with a stated tie rule, and recall at K in both directions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ease_flower.errors import NotFinite

Matrix = NDArray[np.floating]
Indices = NDArray[np.integer]


def retrieval_recall(
    image_emb: Matrix,
    text_emb: Matrix,
    text_image: Indices,
    queries: Indices | None = None,
    ks: Sequence[int] = (1, 5, 10),
    chunk: int = 1024,
) -> dict[str, float]:
    """Search all images with a caption, and all captions with an image.

    Parameters
    ----------
    image_emb : ndarray of shape (n, w)
        Unit rows, one an image; together they are the gallery.
    text_emb : ndarray of shape (m, w)
        Unit rows, one a caption.
    text_image : ndarray of shape (m,)
        Image each caption belongs to.
    queries : ndarray of int, optional
        Images whose captions, and which themselves, are the queries; all by default. The
        others are only searched among.
    ks : sequence of int
        A K above the number of candidates counts as that number.
    chunk : int
        Queries scored at a time.

    Returns
    -------
    dict
        In percent, up is better: ``t2i_rK`` (share of captions whose image is among the K
        nearest), ``i2t_rK`` (share of images with *any* of their captions among the K nearest)
        and ``rK``, the mean of both. Rank = 1 + candidates that are nearer + half of those
        that are as near (the right one not counted), so that a collapsed model, whose
        embeddings are all alike, scores as chance does and not 100.

    Raises
    ------
    ValueError
        For no image, no caption, or an image without a caption among the queries.
    NotFinite
        If an embedding is NaN or infinite.

    Examples
    --------
    Two images, one caption each; the second caption finds the wrong image:

    >>> images = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> texts = np.array([[1.0, 0.0], [0.8, 0.6]])
    >>> found = retrieval_recall(images, texts, np.array([0, 1]), ks=(1,))
    >>> found["t2i_r1"], found["i2t_r1"], found["r1"]
    (50.0, 100.0, 75.0)
    """
    if not len(image_emb) or not len(text_emb):
        raise ValueError(f"{len(image_emb)} images and {len(text_emb)} captions: nothing to search")
    if not (np.isfinite(image_emb).all() and np.isfinite(text_emb).all()):
        raise NotFinite("embeddings hold NaN or infinite entries: the model has diverged")
    asked = np.arange(len(image_emb)) if queries is None else np.asarray(queries)
    captions = np.flatnonzero(np.isin(text_image, asked))
    bare = np.setdiff1d(asked, text_image)
    if len(bare):
        raise ValueError(f"image {bare[0]} has no caption to be found by")
    by_text = np.concatenate(
        [
            ranks(
                text_emb[rows] @ image_emb.T, text_image[rows][:, None] == np.arange(len(image_emb))
            )
            for rows in _chunks(captions, chunk)
        ]
    )
    by_image = np.concatenate(
        [
            ranks(image_emb[rows] @ text_emb.T, rows[:, None] == text_image[None, :])
            for rows in _chunks(asked, chunk)
        ]
    )
    out: dict[str, float] = {}
    for k in ks:
        out[f"t2i_r{k}"] = recall_at(by_text, min(k, len(image_emb)))
        out[f"i2t_r{k}"] = recall_at(by_image, min(k, len(text_emb)))
        out[f"r{k}"] = (out[f"t2i_r{k}"] + out[f"i2t_r{k}"]) / 2
    return out


def ranks(scores: Matrix, right: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Rank the best right candidate of each query.

    Parameters
    ----------
    scores, right : ndarray of shape (queries, candidates)
        Similarities, and which candidates are right (at least one a row).

    Returns
    -------
    ndarray of shape (queries,)
        1 + wrong candidates above the best right one + half of the wrong ones level with it.

    Examples
    --------
    >>> scores = np.array([[0.9, 0.5, 0.5, 0.1]])
    >>> ranks(scores, np.array([[False, True, False, False]]))
    array([2.5])
    """
    best = np.where(right, scores, -np.inf).max(1, keepdims=True)
    above = ((scores > best) & ~right).sum(1)
    level = ((scores == best) & ~right).sum(1)
    found: NDArray[np.float64] = 1 + above + level / 2
    return found


def recall_at(rank: NDArray[np.floating], k: int) -> float:
    """Return the share of ranks at most k, in percent."""
    return 100.0 * float(np.mean(rank <= k))


def is_collapsed(embeddings: Matrix, tolerance: float = 1e-3) -> bool:
    """Say whether all embeddings (unit rows) point one way: retrieval then means nothing."""
    return bool(np.linalg.norm(embeddings.mean(0)) > 1 - tolerance)


def _chunks(rows: Indices, size: int) -> list[Indices]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
