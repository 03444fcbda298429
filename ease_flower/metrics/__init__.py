"""What is measured: retrieval, membership, and both together for one holder."""

from ease_flower.metrics.membership import attack_accuracy, membership_auc, pair_scores
from ease_flower.metrics.retrieval import is_collapsed, ranks, recall_at, retrieval_recall

__all__ = [
    "attack_accuracy",
    "is_collapsed",
    "membership_auc",
    "pair_scores",
    "ranks",
    "recall_at",
    "retrieval_recall",
]
