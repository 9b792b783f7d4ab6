"""The mathematics of second-order pooling as functions of tensors; nothing here knows of modules or configurations."""
