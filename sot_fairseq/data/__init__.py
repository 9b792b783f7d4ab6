"""Binary data sets: how they are written, what they say of themselves, how they are read."""
