"""All readers."""

from tests.fuzz.readers_text import TEXT_READERS
from tests.fuzz.readers_vision import VISION_READERS

READERS = (*TEXT_READERS, *VISION_READERS)
