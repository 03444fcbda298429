"""What a report is made of: plain data, so that it can be stored and drawn again."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ease_flower.errors import StateError


@dataclass(frozen=True)
class ReportData:
    """Everything the page shows.

    Attributes
    ----------
    metrics : dict
        As in ``metrics.json``.
    curve : list of dict
        Figures right after excision (``round`` 0) and after each recovery round, with ``drift``,
        the distance moved along the removed directions.
    angles : list of dict
        Per block: ``cosines``, ``angles``, ``removed`` of the forget side's principal directions.
    calibration : dict
        ``strength`` (lambda), ``how`` it was chosen, and the ``curve`` of holders' AUC over it.
    pictures : list of dict
        A query and what each model retrieved, images as data URIs.
    pictures_note : str
        Why some pictures are missing.
    settings : dict
        The run config.
    costs : list of dict
        Rounds, megabytes, client seconds, dropped replies of each phase.
    notes : list of str
    model_hashes : dict
        SHA-256 of each model's adapters.
    created : str
    """

    metrics: Mapping[str, Any]
    curve: list[dict[str, Any]]
    angles: list[dict[str, Any]]
    calibration: Mapping[str, Any]
    pictures: list[dict[str, Any]]
    pictures_note: str
    settings: Mapping[str, Any]
    costs: list[dict[str, Any]]
    notes: list[str]
    model_hashes: Mapping[str, str]
    created: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "ReportData":
        """Read what `to_json` gave.

        Raises
        ------
        StateError
            Names the entries that are missing or unknown.
        """
        known = {f.name for f in fields(cls)}
        if not isinstance(value, dict) or value.keys() != known:
            odd = sorted(known ^ set(value)) if isinstance(value, dict) else ["not an object"]
            raise StateError(f"report.json: missing or unknown: {', '.join(odd)}; evaluate again")
        return cls(**value)
