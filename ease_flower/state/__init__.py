"""What the server keeps on disk: models, the update history, and the manifest that commits them."""

from ease_flower.state.history import History, Update
from ease_flower.state.store import Store

__all__ = ["History", "Store", "Update"]
