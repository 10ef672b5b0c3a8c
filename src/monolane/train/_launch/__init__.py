"""A run that ends by itself: code and config kept, processes watched and started again."""
