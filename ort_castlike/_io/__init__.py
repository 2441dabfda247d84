"""How values pass into and out of a session: numpy arrays, OrtValues, and the ports that convert them."""
