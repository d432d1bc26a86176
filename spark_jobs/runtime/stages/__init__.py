"""Stages at work: built, run in batches that stage their rows, held, ended, started again."""
