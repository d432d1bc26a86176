"""Drivers: started on this host or through ``spark-submit``, found again, with their last log lines."""
