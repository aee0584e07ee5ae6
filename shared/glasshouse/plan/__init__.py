"""Capacity planning: forecast, from a measured run, how many generators are worth using."""
