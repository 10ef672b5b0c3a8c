"""An MLP whose gate lets few numbers through."""
