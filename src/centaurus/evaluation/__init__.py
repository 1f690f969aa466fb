"""Metrics of a trained model on recordings: nothing here needs torch."""
