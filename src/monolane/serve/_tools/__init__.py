"""Tools: read from a request, shown to the model, found in its answer."""
