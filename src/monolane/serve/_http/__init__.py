"""The way of a request, whichever API it came by: checked, read, prepared, answered."""
