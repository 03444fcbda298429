"""Forgetting: requests, the subspace decomposition, and excision."""

from ease_flower.unlearning.excision import Excision, add_displacement, decompose_history, excise
from ease_flower.unlearning.requests import ForgetRequest

__all__ = ["Excision", "ForgetRequest", "add_displacement", "decompose_history", "excise"]
