"""Pairs and where they come from: drawn scenes, Karpathy JSON, and who holds which."""

from ease_flower.data.pairs import Pairs, concat

__all__ = ["Pairs", "concat"]
