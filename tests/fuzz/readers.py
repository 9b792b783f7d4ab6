"""All readers."""

from tests.fuzz.readers_text import TEXT_READERS

READERS = TEXT_READERS
