"""Federated multimodal unlearning: the library, without Flower.

Wings, from the ground up: `config`, `protocol`, `seeding`, `errors`; then `data` and `state`;
`model`; `metrics`; `unlearning` and `report`; `cli`. A file imports only from below its own.
"""

__version__ = "0.1.0"
