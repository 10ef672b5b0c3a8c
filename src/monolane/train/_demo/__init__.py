"""The demo model: its recipe, its material, its figures and its card."""
