"""The tests, in directories by what they need and what they do to the product."""
