"""Tests with power cuts and errors of the operating system."""
