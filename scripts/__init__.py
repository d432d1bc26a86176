"""What ``make`` runs."""
