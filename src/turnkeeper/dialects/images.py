"""Images in requests: refused, or left out with one fixed text in their place.

A session holds text, and an image cannot be replayed token by token. A policy that calls a tool for a screenshot gets
one all the same; with ``--on-image omit`` its episode goes on with the placeholder where the image would have stood.
"""

from turnkeeper.choices import OnImage
from turnkeeper.jsontypes import JsonObject

IMAGE_TYPES = ("image", "image_url", "input_image")
"""The types under which the three APIs, and clients that mix them, send an image. A tuple and no set, since a
client may send any JSON value as the type, a list too."""

IMAGE_PLACEHOLDER = "[image omitted: this model reads text only]"
"""What the policy reads in place of an image that was left out. Changing it changes prompts."""

IMAGE_NOTE = f"left out images: the policy reads {IMAGE_PLACEHOLDER!r} in the place of each"

IMAGE_HINT = "images cannot be replayed token by token; --on-image omit leaves them out"


class ImageFilter:
    """Refuses the images of one request, or replaces each by a text."""

    def __init__(self, on_image: OnImage) -> None:
        self.omits = on_image is OnImage.OMIT
        """Whether images are left out; they are refused otherwise."""
        self._has_omitted = False

    @property
    def notes(self) -> tuple[str, ...]:
        """The note that the turn gets; empty where no image was left out."""
        return (IMAGE_NOTE,) if self._has_omitted else ()

    def find_placeholder(self, part: JsonObject) -> str | None:
        """Find the text for an image that is left out; None for any other part, and where images are refused."""
        if not self.omits or part.get("type") not in IMAGE_TYPES:
            return None
        self._has_omitted = True
        return IMAGE_PLACEHOLDER
