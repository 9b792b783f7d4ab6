"""The command lines: options, configuration files, devices, and the files of a run."""
