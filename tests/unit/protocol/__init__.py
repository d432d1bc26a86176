"""Tests of the documents, errors, settings and steps that all parts share."""
