"""Dense MLPs."""
