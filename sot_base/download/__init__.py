"""Downloads: one file, its transfer, folders of files, archives."""
