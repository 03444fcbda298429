"""Message types and record keys that server and client share, and nothing else.

``strategies`` and ``clients`` never import each other: what passes between them is a Flower
message whose names stand here.
"""

import hashlib
from functools import cache
from pathlib import Path

ARRAYS = "arrays"  # ArrayRecord: the adapters, one array a name, float32
LOCK = "lock"  # ArrayRecord: U_mu, packed ("codes", "steps"), sent once a client
ANCHOR = "anchor"  # ArrayRecord: theta_u, where the adapters sent with the lock are others
EXTRA = "extra"  # ArrayRecord: what else a holder is sent
RESULT = "result"  # ArrayRecord: what a holder answers
CONFIG = "config"  # ConfigRecord: phase, server-round, code-digest, lock-digest, without, request
METRICS = "metrics"  # MetricRecord: num-examples, client-seconds, ...
INFO = "info"  # ConfigRecord: text that a client reports
IDENTITY = "ease.identity"  # ConfigRecord: client-name; num-partitions in simulation
HOLDINGS = "ease.holdings"  # ConfigRecord: train and holdout (counts), or problem (text)

QUERY_IDENTITY = "query.ease_identity"
QUERY_HOLDINGS = "query.holdings"
HOLDER_CALLS = ("attribute", "calibrate", "excise")  # message types train.<name>

NUM_EXAMPLES = "num-examples"
CLIENT_SECONDS = "client-seconds"
CODE_DIGEST = "code-digest"
LOCK_DIGEST = "lock-digest"
LOCK_PUSH = "lock-push"
LOCK_DRIFT = "lock-drift"


@cache
def code_digest() -> str:
    """Hash the library's source, so that a node with other code is found out.

    In simulation Ray imports client code from the working directory of Flower's daemon before
    the app bundle: a second checkout then silently runs the first one's clients.

    Returns
    -------
    str
        First 16 hex digits of the SHA-256 over names and bytes of the library's modules,
        without the app folders that a wheel re-homes below it.
    """
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in ("strategies", "clients"):
            digest.update(name.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
