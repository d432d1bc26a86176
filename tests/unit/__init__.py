"""Tests that mirror the source and need no Spark."""
