"""From text to the ids of a fairseq dictionary."""
