"""What a layer that predicts further ahead begins with."""
