"""Capacity planning: how many generators pay off, estimated from a measured run."""
