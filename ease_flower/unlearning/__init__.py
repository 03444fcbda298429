"""Forgetting: requests, attribution, the subspace decomposition, and excision."""
