"""Everything that changes fairseq's own behaviour, each with its reason."""
