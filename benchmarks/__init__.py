"""``make bench``: what the promises cost, as ratios to plain Spark with Delta in the same session.

Machines differ and are busy, ratios of runs in turn differ less; none of them is asserted in a test.
"""
