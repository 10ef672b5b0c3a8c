"""The delta rule of Kimi Linear: a state whose rows are kept each in its own part."""
