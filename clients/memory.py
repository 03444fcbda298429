"""What a node remembers of a federation: the adapters it received and returned, round by round.

Counterfactual replay needs them (a holder runs its rounds again without the pairs it is to
forget). They lie on the node's own disk and never travel.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import platformdirs
from flwr.app import Context
from numpy.typing import NDArray

from ease_flower.config import Config
from ease_flower.state.files import read_tensor, write_tensors
from ease_flower.state.history import safe_name

Theta = NDArray[np.float32]


class Memory:
    """Rounds of one recipe in one folder; a round that is run again replaces itself.

    Parameters
    ----------
    folder : Path
        Made at the first round.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, rnd: int, received: Theta, returned: Theta) -> None:
        """Write one round, atomically; theta of shape (d,) each."""
        write_tensors(self._file(rnd), {"received": received, "returned": returned})

    def rounds(self) -> list[int]:
        """Return the numbers of the rounds that are kept, ascending."""
        return sorted(int(path.stem[1:]) for path in self.folder.glob("r*.safetensors"))

    def read(self, rnd: int) -> tuple[Theta, Theta]:
        """Return what was received and returned in a round."""
        received, returned = (
            read_tensor(self._file(rnd), name).astype(np.float32)
            for name in ("received", "returned")
        )
        return received, returned

    def _file(self, rnd: int) -> Path:
        return self.folder / f"r{rnd:04d}.safetensors"


def open_memory(context: Context, config: Config, name: str) -> Memory:
    """Find a node's memory: one folder a node and recipe.

    It lies in ``state-path`` of the node config, or below the run's state directory in
    simulation, or in the user's state directory.
    """
    node = context.node_config
    if "state-path" in node:
        root = Path(str(node["state-path"])).expanduser()
    elif "data-path" not in node and config.state_dir:
        root = Path(config.state_dir).expanduser() / "nodes"
    else:
        root = Path(platformdirs.user_state_dir("ease-flower")) / "nodes"
    recipe = json.dumps(config.recipe(), sort_keys=True).encode()
    run = hashlib.sha256(recipe).hexdigest()[:12]
    if "data-path" not in node and not config.state_dir:
        run = f"{run}-{context.run_id}"  # without a state directory each run is its own
    return Memory(root / safe_name(name) / run)
