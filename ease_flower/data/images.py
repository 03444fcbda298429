"""Open any image file as the RGB picture a person would see."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ease_flower.errors import DataError


def open_rgb(path: Path) -> Image.Image:
    """Open an image: rotated as its EXIF says, alpha on white, any mode, as RGB.

    Raises
    ------
    DataError
        Names the file, if it is missing, truncated or no image.
    """
    try:
        with Image.open(path) as file:
            file.load()
            image = ImageOps.exif_transpose(file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such image file") from None
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: not a whole image ({error}); replace or remove it") from None
    if image.mode.startswith("I") or image.mode == "F":  # 16 bit and more, grey
        values = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode != "F" else max(values.max(), 1.0)
        return Image.fromarray((values / top * 255).round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(paper, image)
    return image.convert("RGB")
