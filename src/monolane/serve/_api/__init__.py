"""HTTP: the types on the wire, the routes, the replies, and the checks before them."""
