"""llama.cpp's own routes: completions, infill, and the small ones that its clients ask."""
