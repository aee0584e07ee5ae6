"""Report: what people look at. For now the learning curve; see `curves`."""
