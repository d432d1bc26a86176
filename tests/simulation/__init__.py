"""Runs the real code over a storage in memory, in schedules that a seed decides."""
