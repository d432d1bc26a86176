"""Drivers: started on this host or through ``spark-submit``, found again, and what they have said last."""
