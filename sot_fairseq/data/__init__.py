"""Binary data sets: writing, description, reading."""
