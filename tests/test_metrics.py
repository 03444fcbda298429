"""Retrieval and membership against brute force, hand-made numbers and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ease_flower.errors import NotFinite
from ease_flower.metrics import is_collapsed, membership_auc, pair_scores, retrieval_recall
from ease_flower.metrics.membership import auc_standard_error


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def brute_force(image, text, owner, queries, k):
    """Count one query at a time, in plain Python."""
    hits = []
    for caption in range(len(text)):
        if owner[caption] not in queries:
            continue
        scores = [float(text[caption] @ row) for row in image]
        own = scores[owner[caption]]
        others = [s for i, s in enumerate(scores) if i != owner[caption]]
        hits.append(1 + sum(s > own for s in others) + sum(s == own for s in others) / 2 <= k)
    t2i = 100 * sum(hits) / len(hits)
    hits = []
    for i in queries:
        scores = [float(image[i] @ row) for row in text]
        own = max(s for s, o in zip(scores, owner, strict=True) if o == i)
        others = [s for s, o in zip(scores, owner, strict=True) if o != i]
        hits.append(1 + sum(s > own for s in others) + sum(s == own for s in others) / 2 <= k)
    return t2i, 100 * sum(hits) / len(hits)


@pytest.mark.parametrize("seed", range(5))
def test_recall_equals_brute_force_with_cosines_of_both_signs(seed):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(12), rng.integers(1, 5, 12))
    image = unit(rng.standard_normal((12, 3)))
    text = unit(image[owner] + rng.standard_normal((len(owner), 3)))
    queries = np.array([0, 3, 4, 7])
    found = retrieval_recall(image, text, owner, queries, ks=(1, 3), chunk=2)
    for k in (1, 3):
        t2i, i2t = brute_force(image, text, owner, set(queries.tolist()), k)
        assert found[f"t2i_r{k}"] == pytest.approx(t2i)
        assert found[f"i2t_r{k}"] == pytest.approx(i2t)
        assert found[f"r{k}"] == pytest.approx((t2i + i2t) / 2)


def test_a_collapsed_model_does_not_score_better_than_chance():
    same = np.tile([[1.0, 0.0]], (10, 1))
    assert retrieval_recall(same, same, np.arange(10))["r1"] == 0.0
    assert is_collapsed(same)
    assert not is_collapsed(np.eye(4))


def test_k_above_the_gallery_counts_as_the_gallery():
    found = retrieval_recall(np.eye(3), np.eye(3), np.arange(3), ks=(50,))
    assert found["r50"] == 100.0


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_embeddings_that_are_not_finite_are_refused(broken):
    image = np.eye(3)
    image[1, 1] = broken
    with pytest.raises(NotFinite):
        retrieval_recall(image, np.eye(3), np.arange(3))


def test_an_empty_gallery_and_an_image_without_caption_are_refused():
    with pytest.raises(ValueError, match="nothing to search"):
        retrieval_recall(np.zeros((0, 3)), np.eye(3), np.arange(3))
    with pytest.raises(ValueError, match="image 2 has no caption"):
        retrieval_recall(np.eye(3), np.eye(3)[:2], np.arange(2))


@pytest.mark.parametrize("seed", range(4))
def test_membership_auc_equals_scikit_learn_with_ties(seed):
    rng = np.random.default_rng(seed)
    members, others = rng.integers(0, 6, 30) / 5 + 0.1, rng.integers(0, 6, 40) / 5
    truth = np.r_[np.ones(30), np.zeros(40)]
    want = roc_auc_score(truth, np.r_[members, others])
    assert membership_auc(members, others)[0] == pytest.approx(want)


def test_the_standard_error_is_that_of_repeated_draws():
    rng = np.random.default_rng(0)
    draws = [membership_auc(rng.normal(0.5, 1, 60), rng.normal(0, 1, 60))[0] for _ in range(2000)]
    assert auc_standard_error(float(np.mean(draws)), 60, 60) == pytest.approx(
        np.std(draws), rel=0.1
    )


def test_pair_scores_average_over_the_captions_of_an_image():
    image, text = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    np.testing.assert_allclose(pair_scores(image, text, np.array([0, 0, 1])), [0.5, 0.8])
