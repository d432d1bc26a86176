"""Waits for something in a home. Commands, tasks and triggers share their looks and their decisions."""
