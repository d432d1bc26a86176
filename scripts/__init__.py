"""Programs that ``make`` runs."""
