"""What runs on the server: strategies on Flower's FedAvg, and the ServerApp that runs phases.

`server_app` is Flower's entry; `phases` runs one after another over a state directory; `base`
averages adapters of named clients; one file a method.
"""

from .base import AdapterFedAvg
from .ease import Ease
from .retrain import Retrain

REGISTRY: dict[str, type[AdapterFedAvg]] = {"ease": Ease, "retrain": Retrain}

__all__ = ["REGISTRY", "AdapterFedAvg", "Ease", "Retrain"]
