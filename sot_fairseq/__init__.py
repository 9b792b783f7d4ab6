"""fairseq plug-in of the SoT toolkit: pass this folder to ``--user-dir``."""
